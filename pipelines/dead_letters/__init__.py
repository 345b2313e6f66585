"""Records that were refused, as records of dead-letter topics: made, read, filtered, written back."""
