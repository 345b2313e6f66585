"""`.proto` files as the registry sees them; the language itself is `pipelines.schemas.protobuf`."""
