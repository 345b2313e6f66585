"""SQL statements as text: their shape, and the names of Spark's functions. Pure."""
