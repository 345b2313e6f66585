"""Lowest layer: clock, disk, network and event loop, as interfaces with their real implementations."""
