"""Access control lists in the metadata store: one node per binding, named by its digest.

| path | data |
|---|---|
| `/kafka-acl/<digest>` | `{"version":1,"resourceType":2,"name":...,"patternType":3,"principal":...,"host":...,"operation":3,"permission":3}` |

Equal bindings have equal names, so each binding is stored once.
"""  # noqa: E501 (a table)

import hashlib
from typing import Any

import orjson

from headwater.logtier.metadata import paths
from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType
from headwater.logtier.security.operations import AclOperation, ResourceType


def acl_name(binding: AclBinding) -> str:
    """Name of a binding's node: a digest, since resource and principal names may be invalid in paths."""
    return hashlib.sha256(encode_acl(binding)).hexdigest()[:40]


def acl_path(binding: AclBinding) -> str:
    """Path of a binding's node."""
    return f"{paths.ACLS}/{acl_name(binding)}"


def encode_acl(binding: AclBinding) -> bytes:
    """Data of a binding's node."""
    fields: dict[str, Any] = {
        "version": 1,
        "resourceType": int(binding.resource_type),
        "name": binding.resource_name,
        "patternType": int(binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission": int(binding.permission),
    }
    return orjson.dumps(fields)


def decode_acl(path: str, data: bytes) -> AclBinding:
    """Return the binding of a node; CorruptNodeError."""
    try:
        fields = orjson.loads(data)
        return AclBinding(
            ResourceType(fields["resourceType"]),
            str(fields["name"]),
            PatternType(fields["patternType"]),
            str(fields["principal"]),
            str(fields["host"]),
            AclOperation(fields["operation"]),
            PermissionType(fields["permission"]),
        )
    except (KeyError, TypeError, ValueError):
        raise paths.CorruptNodeError(path, data) from None
