"""The storage engine: logs of segments with sparse indexes, producer state and recovery; independent of the network."""
