"""APIs between brokers: served on the inter-broker listener of a cluster, and never listed by ApiVersions."""
