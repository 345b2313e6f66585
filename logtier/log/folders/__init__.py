"""The folders of `log.dirs`, and the folders of the logs in them."""
