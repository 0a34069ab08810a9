"""How programs meet it: the app, its runs, and the store that its URL names. The one room that joins all others."""
