"""The segments of a log: files of batches, their indexes, and checkpoints."""
