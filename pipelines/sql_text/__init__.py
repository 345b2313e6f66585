"""SQL statements as text: their shape, and Spark's functions by name. Pure."""
