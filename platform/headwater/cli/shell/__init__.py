"""What all commands share: options, output, errors, signals, streams, and the way to brokers."""
