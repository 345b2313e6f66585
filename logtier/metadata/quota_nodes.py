"""Client quotas in the metadata store: one node per entity.

| path | data |
|---|---|
| `/config/client_quotas/<digest>` | `{"version":1,"entity":{"user":"alice","client-id":null},"quotas":{"producer_byte_rate":1000.0}}` |
"""  # noqa: E501 (a table)

import hashlib

import orjson

from headwater.logtier.config.quotas import ClientQuota, QuotaEntity, entity_of
from headwater.logtier.metadata import paths


def quota_path(entity: QuotaEntity) -> str:
    """Path of an entity's quotas; the name is a digest, since user names may be invalid in paths."""
    return f"{paths.CLIENT_QUOTAS}/{hashlib.sha256(orjson.dumps(entity)).hexdigest()[:40]}"


def encode_quota(quota: ClientQuota) -> bytes:
    """Data of an entity's node."""
    return orjson.dumps({"version": 1, "entity": dict(quota.entity), "quotas": dict(quota.values)})


def decode_quota(path: str, data: bytes) -> ClientQuota:
    """Return the quotas of a node; CorruptNodeError."""
    try:
        fields = orjson.loads(data)
        values = {str(key): float(value) for key, value in fields["quotas"].items()}
        return ClientQuota(entity_of(fields["entity"]), values)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise paths.CorruptNodeError(path, data) from None
