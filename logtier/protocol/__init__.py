"""The Kafka protocol: headers, messages by (key, version), hand-written Produce and Fetch messages, errors."""
