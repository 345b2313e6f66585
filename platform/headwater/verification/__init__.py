"""Compares the replicas of partitions, as a client of their brokers."""
