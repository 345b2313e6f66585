"""Compaction: choice of the log, the cleaner process, and the records that stay."""
