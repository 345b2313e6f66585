"""The demo: real flights from a topic, through a pipeline, to a keyed topic, a Delta table and SQL."""
