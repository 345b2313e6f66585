"""`headwater load`: its command, its requests, its display."""
