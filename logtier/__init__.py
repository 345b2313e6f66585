"""Headwater log tier: partitioned, persistent append logs behind the Kafka protocol."""
