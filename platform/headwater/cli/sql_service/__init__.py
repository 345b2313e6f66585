"""The parts of `headwater sql-service`: admission, the JVM's life, one query, its rows, the socket."""
