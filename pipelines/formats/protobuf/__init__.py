"""Protobuf values: protobuf parses messages of a reader's class; arrays convert them to columns and back."""
