"""Files that a schema may import without a reference: protobuf's, Google's common types, Confluent's."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

from google.protobuf import descriptor_pb2

_MODULES: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
} | {
    f"google/type/{name}.proto": f"google.type.{name}_pb2"
    for name in (
        "calendar_period",
        "color",
        "date",
        "datetime",
        "dayofweek",
        "decimal",
        "expr",
        "fraction",
        "interval",
        "latlng",
        "localized_text",
        "money",
        "month",
        "phone_number",
        "postal_address",
        "quaternion",
        "timeofday",
    )
}
_TEXTS: Final = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
          repeated Rule rules = 4;
        }
        message Rule {
          string name = 1;
          string doc = 2;
          string expr = 3;
          string sql = 4;
        }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal {
          bytes value = 1;
          uint32 precision = 2;
          int32 scale = 3;
        }
    """,
    "confluent/type/variant.proto": """
        syntax = "proto3";
        package confluent.type;
        message Variant {
          bytes metadata = 1;
          bytes value = 2;
        }
    """,
}


@functools.cache
def well_known(name: str) -> Any:
    """Return the descriptor of a well-known file, None for any other name."""
    if name in _MODULES:
        file = descriptor_pb2.FileDescriptorProto()
        importlib.import_module(_MODULES[name]).DESCRIPTOR.CopyToProto(file)
        return file
    if name in _TEXTS:
        from headwater.pipelines.schemas.protobuf.parser import parse

        file = parse(_TEXTS[name])
        file.name = name
        file.ClearField("source_code_info")
        return file
    return None
