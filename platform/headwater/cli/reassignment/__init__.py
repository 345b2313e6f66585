"""Moves replicas between brokers: a snapshot of the cluster, a plan (pure), its execution over Kafka's protocol."""
