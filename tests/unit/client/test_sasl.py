"""SASL from the client's side: the exchange of the RFC, our own server, and brokers that are not to be trusted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest

from headwater.logtier.client.sasl import ITERATIONS_MAX, SaslClient, SaslExchangeError, ScramClient, sasl_client
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.security.sasl import PlainServer, SaslServer
from headwater.logtier.security.scram import ScramCredential, ScramServer, ScramUsers

NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def exchange(client: SaslClient, server: SaslServer) -> str | None:
    """Both sides to their end; whom the server knows the client as."""

    async def main() -> str | None:
        token: bytes | None = client.first()
        user = None
        while token is not None:
            step = await server.evaluate(token)
            user = step.user
            token = client.evaluate(step.token)
        return user

    return asyncio.run(main())


def test_the_exchange_of_rfc_7677_is_reproduced() -> None:
    client = rfc_client()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.evaluate(RFC_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.evaluate(RFC_SIGNATURE) is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("user", "password"), [("alice", "secret"), ("a,b=c", "p=w,d"), ("Zoë", "пароль")])
def test_our_server_and_our_client_know_each_other(mechanism: str, user: str, password: str) -> None:
    security = ClientSecurity(protocol="SASL_SSL", mechanism=mechanism, username=user, password=password)
    server: SaslServer = PlainServer({user: password})
    if mechanism != "PLAIN":
        credential = ScramCredential.from_password(mechanism, password)
        server = ScramServer(mechanism, ScramUsers(lambda: {user: {mechanism: credential}}, bytes))
    assert exchange(sasl_client(security, NONCE), server) == user


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "not of the form"),
        (b"\xff", "not UTF-8"),
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue ours"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue ours"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22,i=4096", "not base64"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "asks for 1 iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=%d" % (ITERATIONS_MAX + 1), "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=0", "not of the form"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999", "not of the form"),
    ],
)
def test_a_first_message_that_is_wrong_or_dangerous_ends_the_exchange(message: bytes, why: str) -> None:
    client = rfc_client()
    client.first()
    with pytest.raises(SaslExchangeError, match=why):
        client.evaluate(message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"v=" + base64.b64encode(hmac.digest(b"guessed", b"x", hashlib.sha256)), "does not prove"),
        (b"v=", "does not prove"),
        (b"", "does not prove"),
        (b"e=other-error", "refuses: other-error"),
    ],
)
def test_a_broker_that_does_not_know_the_credential_is_not_believed(message: bytes, why: str) -> None:
    client = rfc_client()
    client.first()
    client.evaluate(RFC_FIRST)
    with pytest.raises(SaslExchangeError, match=why):
        client.evaluate(message)


def test_plain_has_no_challenge() -> None:
    client = sasl_client(ClientSecurity(protocol="SASL_SSL", mechanism="PLAIN", username="a", password="b"), NONCE)
    with pytest.raises(SaslExchangeError, match="challenge"):
        client.evaluate(b"who are you?")
