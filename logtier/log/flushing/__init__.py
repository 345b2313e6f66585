"""Bringing all logs to the device, and writing down how far they are there."""
