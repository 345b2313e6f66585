"""What happens to a stage's rows in between."""
