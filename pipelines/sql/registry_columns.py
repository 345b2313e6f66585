"""Columns of topics that no pipeline declares, by the subject `TOPIC-value` of a schema registry."""

from __future__ import annotations

import json
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines.analysis.topic_schemas import registered_columns
from headwater.pipelines.formats.registry_client import Connection, NotFoundError, RegistryError, client_of

if TYPE_CHECKING:
    from headwater.pipelines.definition import Topic
    from headwater.pipelines.formats import ValueColumns

__all__ = ["Registered", "RegistryColumns", "own_registry"]

KEPT_S: Final = 5.0  # an answer about a topic; schemas change rarely, and statements follow each other fast
CONNECT_S_MAX: Final = 1.0  # a person waits, and without a registry values are raw
ANSWER_BYTES_MAX: Final = 1 << 20
KEPT_MAX: Final = 5_000  # topics


@dataclass(frozen=True, slots=True)
class Registered:
    """The declaration and columns of a topic, and the id of the schema that they come from."""

    schema_id: int
    topic: Topic
    values: ValueColumns


class RegistryColumns:
    """Asks one registry for the columns of topics. Answers are kept for `KEPT_S`."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ValueError for an invalid address."""
        self._connection = Connection.of(url)
        self._clock = clock
        self._kept: dict[str, tuple[float, Registered | None]] = {}
        self._made: dict[str, Registered] = {}

    def of(self, topic: str) -> Registered | None:
        """The columns of a topic; None if the registry has no subject for it. Raises RegistryError."""
        now = self._clock()
        at, found = self._kept.get(topic, (float("-inf"), None))
        if now - at < KEPT_S:
            return found
        found = self._ask(topic)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[topic] = (now, found)
        return found

    def _ask(self, topic: str) -> Registered | None:
        if not _answers(self._connection.urls):
            raise RegistryError(f"no schema registry answers at {self._connection.urls[0]}")
        try:
            schema = client_of(self._connection).latest(f"{topic}-value")
        except NotFoundError:
            self._made.pop(topic, None)
            return None
        made = self._made.get(topic)
        if made is None or made.schema_id != schema.id:
            try:
                declared, values = registered_columns(self._connection, schema, topic)
            except (ValueError, StopIteration) as error:
                raise RegistryError(f"the registry's schema of {topic}-value cannot be used: {error}") from None
            made = self._made[topic] = Registered(schema.id, declared, values)
        return made


def _answers(urls: tuple[str, ...]) -> bool:
    """Whether something listens at one of the addresses: the client's own retries take half a minute."""
    for url in urls:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), CONNECT_S_MAX).close()
        except OSError:
            continue
        return True
    return False


def own_registry(bootstrap_servers: str, http_port: int, cluster_id: Callable[[], str]) -> str | None:
    """The address of the registry on the brokers' node, if one of this cluster answers there.

    `headwater up` and `headwater api` serve the registry together with Confluent's REST API, whose answer names the
    cluster: a registry of another cluster knows other topics under the same names.
    """
    host = bootstrap_servers.partition(",")[0].rpartition(":")[0] or "127.0.0.1"
    url = f"http://{host}:{http_port}"
    if http_port == 0 or not _answers((url,)):
        return None
    try:
        with urllib.request.urlopen(f"{url}/v3/clusters", timeout=CONNECT_S_MAX) as response:  # noqa: S310 - http
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
        ids = {str(each["cluster_id"]) for each in answer["data"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if cluster_id() in ids else None
