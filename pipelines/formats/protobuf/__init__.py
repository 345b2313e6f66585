"""Protobuf values: messages of a reader's class, read by protobuf itself, as Arrow's columns and back."""
