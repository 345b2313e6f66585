"""`headwater archive`: its commands and their display."""
