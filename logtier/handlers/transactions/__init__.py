"""APIs of transactions and producer ids."""
