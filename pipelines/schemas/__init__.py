"""The languages of schemas, for the registry that keeps them and for the formats that read by them. Pure."""
