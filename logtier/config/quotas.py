"""Client quotas: entities, names, types and limits (KIP-13, 124, 599, 612)."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple

from headwater.logtier.config.definition import INT_MAX, LONG_MAX

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Entity of a quota: types and names, sorted by type, each type once. The name None is the default of the type."""


class ClientQuota(NamedTuple):
    """Quotas of one entity, by key."""

    entity: QuotaEntity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class QuotaDef:
    """Definition of a quota key. `maximum` is the largest value of the integer type; None means a real number."""

    name: str
    maximum: int | None
    doc: str


_CLIENT_KEYS: Final = {
    each.name: each
    for each in (
        QuotaDef(PRODUCER_BYTE_RATE, LONG_MAX, "Bytes of produce requests per second."),
        QuotaDef(CONSUMER_BYTE_RATE, LONG_MAX, "Bytes of fetch responses per second."),
        QuotaDef(REQUEST_PERCENTAGE, None, "Percentage of the event loop's time."),
        QuotaDef(CONTROLLER_MUTATION_RATE, None, "Partitions created or deleted per second."),
    )
}
_IP_KEYS: Final = {
    CONNECTION_CREATION_RATE: QuotaDef(CONNECTION_CREATION_RATE, INT_MAX, "New connections of an address per second.")
}


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity with these types and names.

    >>> entity_of({"user": "alice", "client-id": None})
    (('client-id', None), ('user', 'alice'))
    """
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


def entity_problem(entity: QuotaEntity) -> str | None:
    """Return why an entity is invalid, or None."""
    if not entity:
        return "Invalid empty client quota entity"
    parts = dict(entity)
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {kind[:100]}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in parts:
        if len(parts) > 1:
            return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        address = parts[IP]
        if address is not None and not _is_address(address):
            return f"{address[:100]} is not a valid IP address"
    return None


def value_problem(entity: QuotaEntity, key: str, value: float) -> str | None:
    """Return why a value is invalid for a valid entity, or None."""
    definition = (_IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS).get(key)
    if definition is None:
        return f"Invalid configuration key {key[:100]}"
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    if definition.maximum is None:
        return None
    if value > definition.maximum:
        return f"Proposed value for {key} is too large for {'an INT' if definition.maximum == INT_MAX else 'a LONG'}."
    return f"{key} cannot be a fractional value." if value % 1 > 1e-6 else None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
