"""The Spark session with everything that our sources and sinks need, and Spark's own ways that we depend on."""
