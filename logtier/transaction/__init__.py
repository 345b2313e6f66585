"""Transactions: who is in one, what it includes, how it ended (KIP-98, KIP-360, KIP-890)."""
