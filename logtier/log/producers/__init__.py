"""The producer states of a log, in memory and in snapshots."""
