"""A stage's steps between its inputs and its sinks."""
