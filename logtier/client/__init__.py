"""A raw client of the Kafka protocol: record batches go in and out as bytes, never as records.

For Spark tasks and, later, replicas. `connection` is the sans-IO core; `blocking` moves its bytes over a socket;
`cluster` knows leaders; `fetcher` and `producer` read and write one partition's batches in order.
"""
