"""Checks and conversion of a batch before its append."""
