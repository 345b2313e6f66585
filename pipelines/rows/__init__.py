"""Rows and values without a JVM: their types, tests' rows, comparison of two sets. Pure."""
