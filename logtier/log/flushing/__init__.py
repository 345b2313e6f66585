"""Syncs all logs, and checkpoints how far they are on the device."""
