"""`.proto` files in the registry; the language itself is `headwater.pipelines.schemas.protobuf`."""
