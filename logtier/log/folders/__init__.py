"""The folders of `log.dirs`, and the folders of logs in them."""
