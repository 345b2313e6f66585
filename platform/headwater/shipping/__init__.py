"""Log files that become messages of topics: found, followed, sent, and remembered."""
