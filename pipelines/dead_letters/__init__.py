"""Dead letters: refused records in dead-letter topics, and their reading, filtering and replay."""
