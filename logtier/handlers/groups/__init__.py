"""APIs of groups and their committed offsets."""
