"""Partitions as replicas see them: who leads, what is replicated, who waits for more."""
