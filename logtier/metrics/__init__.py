"""What Prometheus is told of a broker."""
