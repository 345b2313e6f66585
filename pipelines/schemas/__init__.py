"""Schema languages, for the registry and for the formats. Pure."""
