"""A schema registry over a compacted topic: Confluent's REST interface, record format and compatibility rules.

`state` is the sum of the topic's records; `registering`, `deleting` and `settings` decide (pure); `topic_log` reads and
writes the topic, `service` combines state and topic, `routes` serve the result.
"""
