"""What several tests need: the specification's tables typed in by hand, and streams made from them."""
