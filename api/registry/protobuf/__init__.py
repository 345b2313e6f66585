"""`.proto` files as the registry sees them; the language itself is `headwater.pipelines.schemas.protobuf`."""
