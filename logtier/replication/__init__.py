"""Replicas of partitions: leadership, replication, delayed requests."""
