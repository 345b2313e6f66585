"""Headwater: pipelines, topics and tables from one command line."""

__version__ = "0.1.0"
