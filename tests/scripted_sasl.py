"""Logins at a broker in memory."""

from __future__ import annotations

from typing import Any

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import encode_response
from tests.memory_network import MemoryBroker, MemoryRequest

ALICE = ClientSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="alice-secret")


class ScriptedSasl:
    """The SASL side of a broker: one user, sessions of a limited time."""

    def __init__(self, broker: MemoryBroker, lifetime_ms: int = 0) -> None:
        self.password = "alice-secret"
        self.lifetime_ms = lifetime_ms
        self.logins = 0
        self.held: list[MemoryRequest] = []
        #: APIs whose requests are held back.
        self.holds: set[int] = set()
        broker.handler = self.handle

    def handle(self, request: MemoryRequest) -> None:
        if request.api_key in self.holds:
            self.held.append(request)
        else:
            self.answer(request)

    def answer(self, request: MemoryRequest) -> None:
        if request.api_key == 17:
            request.answer_tree({"error_code": ErrorCode.none, "mechanisms": ["PLAIN"]})
        elif request.api_key == 36:
            self.logins += 1
            if self.password.encode() in request.body:
                tree: dict[str, Any] = {"error_message": None, "auth_bytes": b"", "session_lifetime": self.lifetime_ms}
            else:
                message = "Authentication failed: Invalid username or password"
                tree = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": message, "auth_bytes": b""}
            # Version 2 has tagged fields in the header of its response.
            header = b"\0" * (request.api_version == 2)
            request.answer(header + encode_response(request.api_key, request.api_version, tree))
        else:
            request.answer(request.body)
