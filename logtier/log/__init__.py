"""The storage engine: logs of segments with sparse indexes, producer state and recovery. Knows no network."""
