"""Groups and their offsets in `__consumer_offsets`: written, and read back."""
