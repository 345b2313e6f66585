"""Produce, Fetch, and the other APIs that read or delete records."""
