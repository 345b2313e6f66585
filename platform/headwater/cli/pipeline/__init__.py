"""`headwater pipeline`: one module per command, shared parts, and the group."""
