"""Messages in `produce`, `consume` and `dead-letters`: input, output and search."""
