"""Selects the quota of a client by Kafka's order of precedence. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headwater.logtier.config.quotas import CLIENT_ID, IP, USER, ClientQuota, QuotaEntity, entity_of


class Scope(NamedTuple):
    """The clients that share one quota: all clients of a user, a client id of all users, or one client of one user."""

    user: str | None
    client_id: str | None


class Limit(NamedTuple):
    """A quota and the scope that shares it."""

    value: float
    scope: Scope


class QuotaTable:
    """The quotas of all entities; each look-up goes from the most specific entity to the most general one."""

    def __init__(self, quotas: Iterable[ClientQuota] = ()) -> None:
        self._values: dict[QuotaEntity, Mapping[str, float]] = {quota.entity: quota.values for quota in quotas}

    def keys(self) -> frozenset[str]:
        """The keys for which any entity has a quota."""
        return frozenset(key for values in self._values.values() for key in values)

    def limit(self, user: str, client_id: str, key: str) -> Limit | None:
        """Return the quota of a client; None if there is none."""
        for entity, scope in (
            (_entity(user=user, client_id=client_id), Scope(user, client_id)),
            (_entity(user=user, client_id=None), Scope(user, client_id)),
            (_entity(user=user), Scope(user, None)),
            (_entity(user=None, client_id=client_id), Scope(user, client_id)),
            (_entity(user=None, client_id=None), Scope(user, client_id)),
            (_entity(user=None), Scope(user, None)),
            (_entity(client_id=client_id), Scope(None, client_id)),
            (_entity(client_id=None), Scope(None, client_id)),
        ):
            value = self._values.get(entity, _NOTHING).get(key)
            if value is not None:
                return Limit(value, scope)
        return None

    def limit_of_address(self, address: str, key: str) -> float | None:
        """Return the quota of an address; None if there is none."""
        value = self._values.get(((IP, address),), _NOTHING).get(key)
        return self._values.get(((IP, None),), _NOTHING).get(key) if value is None else value


_NOTHING: Final[Mapping[str, float]] = {}
_ABSENT: Final = object()


def _entity(*, user: object = _ABSENT, client_id: object = _ABSENT) -> QuotaEntity:
    parts: dict[str, str | None] = {}
    if user is not _ABSENT:
        parts[USER] = user  # type: ignore[assignment]
    if client_id is not _ABSENT:
        parts[CLIENT_ID] = client_id  # type: ignore[assignment]
    return entity_of(parts)
