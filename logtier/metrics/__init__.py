"""The Prometheus metrics of a broker."""
