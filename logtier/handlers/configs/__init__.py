"""APIs of configs, including levels of loggers."""
