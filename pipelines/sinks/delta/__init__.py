"""Delta tables as sinks: rows are appended, replace all others, or are merged as changes."""
