"""Mistakes of a pipeline's file that are found without Spark, and the files that it names."""
