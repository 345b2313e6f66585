"""Tokens: signed by a key of the JWKS, not expired, for us; and where the keys come from."""

import asyncio
import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from headwater.logtier.security import jwks
from headwater.logtier.security.jwks import JwksError, JwksKeys, RefreshPolicy, fetch_jwks
from headwater.logtier.security.oauthbearer import OAuthBearerServer, TokenRules, TokenValidator
from headwater.logtier.security.sasl import AuthenticationError, InvalidTokenError, SaslStep

EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
SECRET = "a shared secret of thirty-two bytes or more"


def public(key: Any, key_id: str, **more: str) -> dict[str, Any]:
    algorithm: Any = jwt.algorithms.ECAlgorithm if hasattr(key, "curve") else jwt.algorithms.RSAAlgorithm
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, **more}


JWKS = {
    "keys": [public(EC_KEY, "ec"), public(RSA_KEY, "rsa", use="sig"), {"kty": "oct", "kid": "oct", "k": "c2VjcmV0"}]
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now

    def now_ms(self) -> int:
        return int(time.time() * 1000)


class Endpoint:
    """Where keys are fetched: counts, and fails when told to."""

    def __init__(self, document: Any = JWKS) -> None:
        self.document = document
        self.fetches = 0
        self.fails = False

    def __call__(self, _: str) -> bytes:
        self.fetches += 1
        if self.fails:
            raise JwksError("there is nobody")
        return json.dumps(self.document).encode()


def keys(endpoint: Endpoint, clock: Clock) -> JwksKeys:
    return JwksKeys("https://issuer/keys", clock, RefreshPolicy(refresh_ms=60_000), endpoint)


async def refreshed(source: JwksKeys) -> None:
    """Wait for the fetch that goes on while keys that are there are given out."""
    if source._refreshing is not None:
        await source._refreshing


def server(rules: TokenRules | None = None, endpoint: Endpoint | None = None) -> OAuthBearerServer:
    return OAuthBearerServer(TokenValidator(keys(endpoint or Endpoint(), Clock()), rules or TokenRules()))


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    values = {"sub": "alice", "iat": now, "exp": now + 600, **more}
    return {name: value for name, value in values.items() if value is not None}


def token(key: Any = EC_KEY, algorithm: str = "ES256", key_id: str | None = "ec", **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, headers={} if key_id is None else {"kid": key_id})


def first(bearer: str, header: str = "n,,", scheme: str = "Bearer", extension: str = "host=localhost\x01") -> bytes:
    return f"{header}\x01{extension}auth={scheme} {bearer}\x01\x01".encode()


def evaluate(oauth: OAuthBearerServer, *messages: bytes) -> SaslStep:
    async def run() -> SaslStep:
        for message in messages:
            step = await oauth.evaluate(message)
        return step

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(EC_KEY, "ES256", "ec"), (RSA_KEY, "RS256", "rsa"), (RSA_KEY, "PS512", "rsa"), (EC_KEY, "ES256", None)],
)
def test_a_token_of_a_known_key_names_its_bearer_and_when_it_ends(key: Any, algorithm: str, key_id: str | None) -> None:
    before_s = int(time.time())
    step = evaluate(server(), first(token(key, algorithm, key_id)))
    assert step.user == "alice"
    assert step.expires_ms is not None
    assert before_s + 600 <= step.expires_ms / 1000 <= time.time() + 600


@pytest.mark.parametrize("extension", ["", "traceId=1\x01host=here\x01"])
def test_extensions_may_stand_beside_the_token(extension: str) -> None:
    assert evaluate(server(), first(token(), extension=extension)).user == "alice"


def tampered() -> str:
    head, _, signature = token().split(".")
    return ".".join([head, token(sub="admin").split(".")[1], signature])


@pytest.mark.parametrize(
    "bearer",
    [
        pytest.param(lambda: token(exp=int(time.time()) - 60), id="expired"),
        pytest.param(lambda: token(exp=None), id="without an end"),
        pytest.param(lambda: token(iat=None), id="without a beginning"),
        pytest.param(lambda: token(nbf=int(time.time()) + 600), id="not yet valid"),
        pytest.param(lambda: token(sub=None), id="without a subject"),
        pytest.param(lambda: token(sub=" "), id="with a blank subject"),
        pytest.param(lambda: token(scope=7), id="with a scope that is a number"),
        pytest.param(lambda: token(OTHER_KEY), id="of another key under a known id"),
        pytest.param(lambda: token(key_id="unknown"), id="of an unknown key"),
        pytest.param(lambda: token(EC_KEY, "ES256", "rsa"), id="of a key of another kind"),
        pytest.param(lambda: token(SECRET, "HS256", "oct"), id="signed by a shared secret"),
        pytest.param(lambda: jwt.encode(claims(), "", "none"), id="not signed at all"),
        pytest.param(tampered, id="with other claims than were signed"),
        pytest.param(lambda: "a.b.c", id="that is no token"),
    ],
)
def test_a_token_that_cannot_be_believed_is_refused_as_the_rfc_says(bearer: Callable[[], str]) -> None:
    oauth = server()
    text = bearer()
    step = evaluate(oauth, first(text))
    assert step.user is None
    assert step.token == b'{"status":"invalid_token"}'
    assert step.refused
    assert text not in step.refused
    with pytest.raises(AuthenticationError, match="invalid_token"):
        evaluate(oauth, b"\x01")


def test_a_token_with_a_shared_secret_made_of_a_public_key_is_refused() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    import base64
    import hashlib
    import hmac

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part({"alg": "HS256", "kid": "rsa"}) + b"." + part(claims())
    signature = base64.urlsafe_b64encode(hmac.digest(pem, signed, hashlib.sha256)).rstrip(b"=")
    assert evaluate(server(), first((signed + b"." + signature).decode())).user is None


@pytest.mark.parametrize(
    ("rules", "more", "accepted"),
    [
        (TokenRules(audience=("kafka",)), {"aud": ["web", "kafka"]}, True),
        (TokenRules(audience=("kafka",)), {"aud": "web"}, False),
        (TokenRules(audience=("kafka",)), {}, False),
        (TokenRules(), {"aud": "whoever"}, True),
        (TokenRules(issuer="https://issuer"), {"iss": "https://issuer"}, True),
        (TokenRules(issuer="https://issuer"), {"iss": "https://other"}, False),
        (TokenRules(issuer="https://issuer"), {}, False),
        (TokenRules(subject_claim="client"), {"client": "bob"}, True),
        (TokenRules(leeway_s=3600), {"exp": int(time.time()) - 60}, True),
    ],
)
def test_audience_issuer_subject_and_skew_are_as_configured(
    rules: TokenRules, more: dict[str, Any], accepted: bool
) -> None:
    step = evaluate(server(rules), first(token(**more)))
    assert (step.user is not None) is accepted
    if "client" in more:
        assert step.user == "bob"


@pytest.mark.parametrize(
    "message", [b"", b"n,,\x01\x01", b"n,,\x01auth=Bearer\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"\xff"]
)
def test_a_first_message_of_another_form_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidTokenError):
        evaluate(server(), message)


def test_another_scheme_is_refused() -> None:
    with pytest.raises(InvalidTokenError, match="scheme"):
        evaluate(server(), first(token(), scheme="Basic"))


def test_another_authorization_id_than_the_tokens_subject_is_refused() -> None:
    assert evaluate(server(), first(token(), "n,a=alice,")).user == "alice"
    with pytest.raises(AuthenticationError, match="different from the token's principal name"):
        evaluate(server(), first(token(), "n,a=admin,"))


def test_keys_are_fetched_once_and_again_when_they_are_old_or_unknown() -> None:
    endpoint, clock = Endpoint({"keys": [public(EC_KEY, "ec")]}), Clock()
    source = keys(endpoint, clock)

    async def run() -> None:
        for _ in range(3):
            assert await source.key("ec", "ES256") is not None
        assert endpoint.fetches == 1
        assert await source.key("new", "ES256") is None
        assert endpoint.fetches == 2
        endpoint.document = {"keys": [public(EC_KEY, "new")]}
        assert await source.key("new", "ES256") is None, "a fetch for every made-up id would be a flood"
        assert endpoint.fetches == 2
        clock.now += jwks.UNKNOWN_KEY_PAUSE_MS
        assert await source.key("new", "ES256") is not None
        clock.now += 60_000
        assert await source.key("new", "ES256") is not None
        await refreshed(source)
        assert endpoint.fetches == 4

    asyncio.run(run())


def test_an_outage_of_the_endpoint_leaves_the_keys_that_there_are() -> None:
    endpoint, clock = Endpoint(), Clock()
    source = keys(endpoint, clock)

    async def run() -> None:
        assert await source.key("ec", "ES256") is not None
        endpoint.fails = True
        clock.now += 3_600_000
        assert await source.key("ec", "ES256") is not None
        await refreshed(source)
        assert await source.key("ec", "ES256") is not None
        assert endpoint.fetches == 2, "after a failure there is a pause"

    asyncio.run(run())


@pytest.mark.parametrize("document", [[], {}, {"keys": 1}, {"keys": [1]}, {"keys": [{}] * (jwks.KEYS_MAX + 1)}])
def test_what_is_no_jwks_is_told(document: Any) -> None:
    with pytest.raises(JwksError, match="not a JWKS"):
        jwks.parse_jwks(json.dumps(document).encode())


def test_a_jwks_is_read_from_a_file_and_not_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(JWKS))
    assert json.loads(fetch_jwks(path.as_uri())) == JWKS
    path.write_bytes(bytes(jwks.JWKS_BYTES_MAX + 1))
    with pytest.raises(JwksError, match="larger than"):
        fetch_jwks(path.as_uri())
    with pytest.raises(JwksError):
        fetch_jwks((tmp_path / "nothing").as_uri())


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """An http URL behind which every request is answered like this; and the requests."""
    requests: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            requests.append(self.rfile.readline())
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}/keys", requests
        finally:
            listening.shutdown()
            serving.join()


def fetching(url: str) -> TokenValidator:
    return TokenValidator(JwksKeys(url, Clock(), RefreshPolicy()), TokenRules())


def test_a_token_is_believed_by_a_jwks_of_an_http_url() -> None:
    document = json.dumps(JWKS).encode()
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(document) + document) as (url, requests):
        validator = fetching(url)
        assert evaluate(OAuthBearerServer(validator), first(token())).user == "alice"
        assert evaluate(OAuthBearerServer(validator), first(token(RSA_KEY, "RS256", "rsa"))).user == "alice"
    assert requests == [b"GET /keys HTTP/1.1\r\n"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n", "LineTooLong"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ncut off", "IncompleteRead"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "Not Found"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b'{"keys": [', "not a JWKS"),
        (b"", "closed connection"),
    ],
)
def test_a_url_that_answers_something_else_refuses_tokens_and_is_not_asked_for_each(
    answer: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(answer) as (url, requests):
        validator = fetching(url)
        for _ in range(3):
            oauth = OAuthBearerServer(validator)
            assert evaluate(oauth, first(token())).token == b'{"status":"invalid_token"}'
            with pytest.raises(AuthenticationError, match="invalid_token"):
                evaluate(oauth, b"\x01")
    assert len(requests) == 1
    [line] = [record.getMessage() for record in caplog.records if record.name == jwks.__name__]
    assert reason in line


def test_a_url_that_is_none_is_told() -> None:
    with pytest.raises(JwksError, match="InvalidURL"):
        fetch_jwks("http://127.0.0.1:port/keys")
