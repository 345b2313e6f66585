"""What becomes of a batch before it is in the log."""
