"""Checks of a pipeline's file, and of the files that it names, without Spark."""
