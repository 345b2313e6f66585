"""Preview of a stage's output, without any write."""
