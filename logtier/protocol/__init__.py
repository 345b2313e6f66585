"""The Kafka protocol: headers, messages by (key, version), the hand-written Produce and Fetch responses, errors."""
