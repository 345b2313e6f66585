"""Reading of a stage's inputs and tables."""
