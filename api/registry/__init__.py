"""A schema registry over a compacted topic: Confluent's REST interface, record format and compatibility rules.

`state` is what the topic's records add up to; `registering`, `deleting` and `settings` decide (pure); `topic_log` reads
and writes the topic, `service` puts both together, `routes` serve it.
"""
