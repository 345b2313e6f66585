"""Bodies of the REST API, in Confluent REST v3's shapes."""
