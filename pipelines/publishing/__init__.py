"""Publishes files, a version of a Delta table, or the difference of two versions into a topic, exactly once."""
