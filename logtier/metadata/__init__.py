"""Cluster metadata: the store, and its immutable image read by all parts of a broker."""
