"""Which broker a client asks for a partition: leaders by epoch, validated positions, nearby replicas."""
