"""What a source or sink of the file names: places, and databases by their JDBC URLs. Pure."""
