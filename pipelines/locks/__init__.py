"""Locks that hold between machines: the brokers keep them."""
