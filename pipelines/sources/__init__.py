"""Where a stage's records come from."""
