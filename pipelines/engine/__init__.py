"""A run: its stages as streaming queries, their micro-batches, restarts."""
