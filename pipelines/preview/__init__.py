"""What a stage would write, without writing."""
