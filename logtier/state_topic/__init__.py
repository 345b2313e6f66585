"""A coordinator's own topic (`__consumer_offsets`, `__transaction_state`): made, loaded, written, and what it says."""
