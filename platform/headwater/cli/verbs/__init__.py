"""The commands of `headwater`, a module each."""
