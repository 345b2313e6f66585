"""Client quotas: usage and throttle times."""
