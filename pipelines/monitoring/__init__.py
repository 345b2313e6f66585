"""Monitoring of a run: states, progress, lag, metrics, the status topic, lineage."""
