"""Which offsets a load takes: what was asked for, what the log has, what the target has already."""
