"""Shared parts of all commands: options, output, errors, signals, streams, and connections to brokers."""
