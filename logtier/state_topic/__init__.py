"""The topic of a coordinator (`__consumer_offsets`, `__transaction_state`): creation, loading, writes, replay."""
