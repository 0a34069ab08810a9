"""Output of the command line: tables, lines for events, tracebacks, and a view that changes in place."""
