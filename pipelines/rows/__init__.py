"""Rows and values without a JVM: their types, what is given in tests, how two sets differ. Pure."""
