"""What a run reports: states, progress, lag, metrics, the status topic, lineage."""
