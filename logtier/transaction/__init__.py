"""Transactions: their producers, partitions, states and outcomes (KIP-98, KIP-360, KIP-890)."""
