"""Cluster metadata: the store it is kept in, and the immutable image of it that every part of a broker reads."""
