"""Consumer groups: the pure state machine of one group, its committed offsets, and the coordinator that runs them."""
