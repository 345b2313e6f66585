"""APIs of topics and their partitions: metadata, creation, deletion, placement."""
