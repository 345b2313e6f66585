"""Record batches: the v2 format, its checksum and its codecs."""
