"""Shipping of log files to topics: discovery, reading, sending, and positions."""
