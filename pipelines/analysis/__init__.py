"""Every stage's columns, found by Spark on empty frames, before a record is read."""
