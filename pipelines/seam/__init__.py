"""The seam between a topic's archive and its log: how far a Delta table is, read from the table without a JVM."""
