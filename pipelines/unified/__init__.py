"""The unified table of an archived topic: its Delta table, and behind it what the log alone has."""
