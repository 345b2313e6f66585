"""The commands of `headwater`, one module each."""
