"""Targets of loads: folders of files and Delta tables, what is written down about them, and how a load is added."""
