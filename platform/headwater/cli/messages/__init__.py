"""Messages as `produce`, `consume` and `dead-letters` read, print and find them."""
