"""Writing a stage's rows to its sinks."""
