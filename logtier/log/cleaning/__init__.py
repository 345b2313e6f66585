"""Compaction: the choice, the process that cleans, and what of a log stays."""
