"""Archives of topics: Delta tables that follow topics, offset by offset."""
