"""Analysis of every stage's columns by Spark on empty frames, before any record is read."""
