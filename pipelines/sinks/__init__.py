"""Where a stage's rows go."""
