"""Pipelines: YAML stages that Spark runs from topic to topic and to Delta."""
