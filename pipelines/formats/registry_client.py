"""A client of schema registries with Confluent's interface, for the driver and for Spark's workers.

A schema never changes under its id, so each schema is fetched once. Responses of 5xx and broken connections are retried
at each of the registry's addresses in turn; any other error response is raised at once. Errors are one line and contain
no secret.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "AVRO",
    "JSON",
    "PROTOBUF",
    "Connection",
    "NotFoundError",
    "RegisteredSchema",
    "RegistryAwayError",
    "RegistryClient",
    "RegistryError",
    "client_of",
]

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

TIMEOUT_S: Final = 10.0  # of one request
ATTEMPTS: Final = 8  # including the pauses, a registry may be unavailable for half a minute
PAUSE_S: Final = 0.25  # after the first failure; it doubles
PAUSE_S_MAX: Final = 8.0
ANSWER_BYTES_MAX: Final = 32 << 20
KEPT_MAX: Final = 5_000  # schemas cached in one process
UNKNOWN_KEPT_S: Final = 10.0  # an unknown id may be registered shortly afterwards
REFERENCES_MAX: Final = 1_000  # of one schema, directly or not
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryError(Exception):
    """The registry refused a request, or no registry responded; the message is one line."""


class RegistryAwayError(RegistryError):
    """No address of the registry has answered for as long as was waited."""


class NotFoundError(RegistryError):
    """The schema, subject or version does not exist."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Connection data of a registry. Hashable, and sent to Spark's workers; `ca` is the PEM text itself."""

    urls: tuple[str, ...]
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, **more: str | None) -> Connection:
        """Build a connection from comma-separated addresses; a user in an address applies unless a user is given.

        >>> Connection.of("http://a:8081/, https://b/registry").urls
        ('http://a:8081', 'https://b/registry')

        Raises:
            ValueError: an address is invalid; the message omits the address, which may contain a password.
        """
        urls = []
        for part in (text.strip() for text in url.split(",")):
            if not part:
                continue
            found = urllib.parse.urlsplit(part)
            if found.scheme not in ("http", "https") or not found.hostname or found.query or found.fragment:
                raise ValueError("a registry's address is such as http://host:8081")
            host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
            port = "" if found.port is None else f":{found.port}"
            urls.append(f"{found.scheme}://{host}{port}{found.path.rstrip('/')}")
            if found.username and not more.get("username") and not more.get("token"):
                more |= {
                    "username": urllib.parse.unquote(found.username),
                    "password": urllib.parse.unquote(found.password or ""),
                }
        if not urls:
            raise ValueError("the registry has no address")
        return cls(tuple(urls), **more)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with all referenced schemas: (name, text) of each, dependencies first."""

    schema_type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    id: int = -1
    subject: str = ""
    version: int = 0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the password to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class RegistryClient:
    """One process's view of a registry. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first = 0  # the address that answered last
        self._lock = threading.Lock()
        self._by_id: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._unknown: dict[int, tuple[float, str]] = {}
        handlers: list[Any] = [_NoRedirects()]
        if any(url.startswith("https") for url in connection.urls):
            try:
                context = ssl.create_default_context(cadata=connection.ca)
            except (ssl.SSLError, ValueError):
                raise RegistryError("the registry's ca holds no certificate in PEM") from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id. Raises NotFoundError if no schema has it."""
        with self._lock:
            if schema_id in self._by_id:
                self._by_id.move_to_end(schema_id)
                return self._by_id[schema_id]
            known = self._unknown.get(schema_id)
        if known is not None and time.monotonic() - known[0] < UNKNOWN_KEPT_S:
            raise NotFoundError(known[1])
        try:
            answer = self._get(f"/schemas/ids/{schema_id}")
        except NotFoundError:
            said = f"the registry has no schema with the id {schema_id}"
            with self._lock:
                if len(self._unknown) >= KEPT_MAX:
                    self._unknown.clear()
                self._unknown[schema_id] = (time.monotonic(), said)
            raise NotFoundError(said) from None
        found = self._whole(answer, schema_id)
        with self._lock:
            self._by_id[schema_id] = found
            while len(self._by_id) > KEPT_MAX:
                self._by_id.popitem(last=False)
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject. Raises NotFoundError if the subject does not exist."""
        try:
            answer = self._get(f"/subjects/{_quoted(subject)}/versions/latest")
        except NotFoundError:
            raise NotFoundError(f"the registry has no subject '{subject}'") from None
        return self._whole(answer, int(answer["id"]))

    def subjects(self, schema_id: int) -> list[str]:
        """Return the subjects that contain the schema with an id."""
        found = self._get(f"/schemas/ids/{schema_id}/subjects")
        return [str(name) for name in found] if isinstance(found, list) else []

    def register(self, subject: str, schema_type: str, text: str) -> int:
        """Register a schema under a subject if missing; returns its id."""
        return self._id_of(f"/subjects/{_quoted(subject)}/versions", schema_type, text)

    def look_up(self, subject: str, schema_type: str, text: str) -> int:
        """Return the id of a schema in a subject. Raises NotFoundError."""
        try:
            return self._id_of(f"/subjects/{_quoted(subject)}", schema_type, text)
        except NotFoundError:
            raise NotFoundError(f"the registry's subject '{subject}' does not have this schema") from None

    def _id_of(self, path: str, schema_type: str, text: str) -> int:
        body: dict[str, Any] = {"schema": text}
        if schema_type != AVRO:
            body["schemaType"] = schema_type
        answer = self._ask(path, body)
        found = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(found, int):
            raise RegistryError("the registry's answer has no id")
        return found

    def _whole(self, answer: Any, schema_id: int) -> RegisteredSchema:
        """Build the schema of a response, with its referenced schemas."""
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise RegistryError("the registry's answer has no schema")
        used: dict[str, str] = {}
        self._collect(answer.get("references") or [], used, 0)
        return RegisteredSchema(
            str(answer.get("schemaType") or AVRO),
            answer["schema"],
            tuple(used.items()),
            schema_id,
            str(answer.get("subject") or ""),
            int(answer.get("version") or 0),
        )

    def _collect(self, references: Any, used: dict[str, str], depth: int) -> None:
        if depth > 100 or len(used) > REFERENCES_MAX:
            raise RegistryError("the schema's references go too deep, or in a circle")
        for reference in references:
            name = str(reference["name"])
            if name in used:
                continue
            other = self._get(f"/subjects/{_quoted(reference['subject'])}/versions/{int(reference['version'])}")
            self._collect(other.get("references") or [], used, depth + 1)
            used.setdefault(name, str(other["schema"]))

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        return self._ask(path, None)

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        said = ""
        for pause_s in _pauses():
            if pause_s:
                time.sleep(pause_s)
            urls = self._connection.urls
            for step in range(len(urls)):
                index = (self._first + step) % len(urls)
                try:
                    answer = self._request(urls[index] + path, body)
                except _TryAgain as error:
                    said = f"{urls[index]}: {error}"
                else:
                    self._first = index
                    return answer
        raise RegistryAwayError(f"the schema registry does not answer: {said}")

    def _request(self, url: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = _MEDIA_TYPE
        own = self._connection
        if own.token is not None:
            headers["Authorization"] = f"Bearer {own.token}"
        elif own.username is not None:
            pair = f"{own.username}:{own.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - Connection.of takes http and https alone
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                content = response.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(65_536)) from None
        except ssl.SSLCertVerificationError as error:
            raise RegistryError(f"the registry's certificate is not trusted: {error.verify_message}") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                why = error.reason.verify_message
                raise RegistryError(f"the registry's certificate is not trusted: {why}") from None
            raise _TryAgain(_reason(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgain(_reason(error)) from None
        if len(content) > ANSWER_BYTES_MAX:
            raise RegistryError("the registry's answer is too large")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise RegistryError("what answers at the registry's address is no schema registry") from None


class _TryAgain(Exception):  # noqa: N818 - it does not leave this module
    """This address did not respond, or was unavailable."""


def _reason(error: Any) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:200]


def _refusal(status: int, content: bytes) -> Exception:
    """Return the error of an unsuccessful response."""
    try:
        answer = json.loads(content)
        said = str(answer["message"]).splitlines()[0][:500]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        said = http.client.responses.get(status, "no reason given")
    if status >= 500 or status in (408, 429):
        return _TryAgain(f"{said} (status {status})")
    if status == 404:
        return NotFoundError(said)
    if status in (401, 403):
        return RegistryError(f"the schema registry refuses the user: {said} (status {status})")
    return RegistryError(f"the schema registry refuses the request: {said} (status {status})")


def _pauses() -> Iterator[float]:
    """Yield the pause before each attempt."""
    pause_s = PAUSE_S
    for attempt in range(ATTEMPTS):
        yield 0.0 if attempt == 0 else pause_s * random.uniform(0.75, 1.25)
        if attempt:
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


_clients: dict[Connection, RegistryClient] = {}
_clients_lock = threading.Lock()


def client_of(connection: Connection) -> RegistryClient:
    """Return this process's client for a registry, whose cache later tasks reuse."""
    with _clients_lock:
        if connection not in _clients:
            _clients[connection] = RegistryClient(connection)
        return _clients[connection]
