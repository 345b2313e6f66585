"""Groups of the consumer protocol (KIP-848) as state machines. Pure."""
