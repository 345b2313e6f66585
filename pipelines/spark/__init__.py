"""The Spark session for Headwater's sources and sinks, and the Spark internals that they depend on."""
