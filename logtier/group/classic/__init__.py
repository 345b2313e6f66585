"""Groups of the classic protocol as state machines. Pure."""
