"""SCRAM: the exchange of the RFC, and everything in it that may be wrong."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from headwater.logtier.security.sasl import AuthenticationError, InvalidTokenError, SaslStep
from headwater.logtier.security.scram import ScramCredential, ScramServer, ScramUsers

PASSWORD = "pencil"
MECHANISM = "SCRAM-SHA-256"


def evaluate(server: ScramServer, token: bytes) -> SaslStep:
    return asyncio.run(server.evaluate(token))


CREDENTIAL = ScramCredential.from_password(MECHANISM, PASSWORD)
USERS = ScramUsers(lambda: {name: {MECHANISM: CREDENTIAL} for name in ("user", "a,b=c")}, lambda: b"secret")


def client_final(
    first: str, answer: bytes, password: str = PASSWORD, *, nonce: str | None = None, binding: str = "biws"
) -> bytes:
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c={binding},r={fields['r'] if nonce is None else nonce}"
    message = f"{first},{answer.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return f"{without_proof},p={proof}".encode()


def test_the_exchange_of_rfc_7677_is_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScramUsers, "nonce", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = ScramCredential.from_password(MECHANISM, "pencil", salt=salt)
    server = ScramServer(MECHANISM, ScramUsers(lambda: {"user": {MECHANISM: credential}}, bytes))
    first = evaluate(server, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.token == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert first.user is None
    final = evaluate(
        server,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert final.token == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert final.user == "user"


def test_a_name_with_escapes_is_read_and_an_equal_authorization_id_taken() -> None:
    server = ScramServer(MECHANISM, USERS)
    first = "n=a=2Cb=3Dc,r=abc"
    answer = evaluate(server, f"n,a=a=2Cb=3Dc,{first}".encode())
    binding = base64.b64encode(b"n,a=a=2Cb=3Dc,").decode()
    assert evaluate(server, client_final(first, answer.token, binding=binding)).user == "a,b=c"


def test_another_authorization_id_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="different from username"):
        evaluate(ScramServer(MECHANISM, USERS), b"n,a=admin,n=user,r=abc")


Forge = Callable[[str, bytes], bytes]


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda first, answer: client_final(first, answer, "guess"), id="wrong password"),
        pytest.param(lambda first, answer: client_final(first, answer, nonce="abc"), id="the client's nonce alone"),
        pytest.param(
            lambda first, answer: client_final(first, answer, nonce="x" + answer.decode()[2:].partition(",")[0]),
            id="a nonce that only ends like ours",
        ),
        pytest.param(lambda first, answer: client_final(first, answer, binding="eSws"), id="another GS2 header"),
        pytest.param(lambda first, answer: client_final(first, answer)[:-8] + b"AA==", id="a short proof"),
        pytest.param(lambda _first, _answer: b"", id="nothing"),
        pytest.param(lambda _first, _answer: b"\xff\xfe", id="not UTF-8"),
        pytest.param(lambda first, answer: client_final(first, answer).partition(b",p=")[0], id="no proof"),
    ],
)
def test_a_wrong_final_message_is_refused(forge: Forge) -> None:
    server = ScramServer(MECHANISM, USERS)
    first = "n=user,r=abc"
    answer = evaluate(server, f"n,,{first}".encode())
    with pytest.raises(InvalidTokenError):
        evaluate(server, forge(first, answer.token))


@pytest.mark.parametrize(
    "token", [b"", b"n=user,r=abc", b"n,,n=user", b"n,,r=abc", b"p=tls-unique,,n=user,r=abc", b"n,,n=user,r=a\x00"]
)
def test_a_wrong_first_message_is_refused(token: bytes) -> None:
    with pytest.raises(InvalidTokenError):
        evaluate(ScramServer(MECHANISM, USERS), token)


def test_an_unknown_user_is_answered_like_a_known_one_and_fails_at_the_end() -> None:
    salts = set()
    for _ in range(2):
        server = ScramServer(MECHANISM, USERS)
        answer = evaluate(server, b"n,,n=nobody,r=abc")
        salts.add(answer.token.partition(b",s=")[2])
        with pytest.raises(InvalidTokenError, match="the user or the password is wrong"):
            evaluate(server, client_final("n=nobody,r=abc", answer.token))
    assert len(salts) == 1, "a salt that changes tells that there is no such user"


def test_a_credential_tells_nothing_in_its_text() -> None:
    text = repr(CREDENTIAL)
    for secret in (CREDENTIAL.salt, CREDENTIAL.stored_key, CREDENTIAL.server_key):
        assert repr(secret) not in text
    assert PASSWORD not in text


def shape(answer: bytes) -> tuple[int, int]:
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    return len(base64.b64decode(fields["s"])), int(fields["i"])


def first_answer(users: ScramUsers, name: str, mechanism: str = MECHANISM) -> bytes:
    return evaluate(ScramServer(mechanism, users), f"n,,n={name},r=abc".encode()).token


def salt_of(answer: bytes) -> bytes:
    return answer.partition(b",s=")[2].partition(b",")[0]


def test_an_unknown_user_is_not_told_from_a_known_one_by_iterations_or_salt() -> None:
    """All users have credentials unlike the usual ones: who is unknown must, too."""
    made = ScramCredential.from_password(MECHANISM, PASSWORD, salt=bytes(18), iterations=8192)
    users = ScramUsers(lambda: {"known": {MECHANISM: made}}, bytes)
    assert {shape(first_answer(users, name)) for name in ("known", "unknown", "other")} == {(18, 8192)}


def test_unknown_users_have_the_shapes_of_all_users_and_each_always_the_same() -> None:
    by_user = {
        str(iterations): {MECHANISM: ScramCredential.from_password(MECHANISM, PASSWORD, iterations=iterations)}
        for iterations in (4096, 5000)
    }
    users = ScramUsers(lambda: by_user, bytes)
    names = [f"unknown{number}" for number in range(40)]
    shapes = [shape(first_answer(users, name)) for name in names]
    assert set(shapes) == {(24, 4096), (24, 5000)}
    assert [shape(first_answer(users, name)) for name in names] == shapes


def test_the_shapes_follow_the_users() -> None:
    def of(iterations: int) -> dict[str, dict[str, ScramCredential]]:
        return {"u": {MECHANISM: ScramCredential.from_password(MECHANISM, PASSWORD, iterations=iterations)}}

    current = of(5000)
    users = ScramUsers(lambda: current, bytes)
    assert users.shapes(MECHANISM) == [(24, 5000)]
    current = of(6000)
    assert users.shapes(MECHANISM) == [(24, 6000)]


def test_the_salt_of_an_unknown_user_hangs_on_the_clusters_secret_and_on_the_mechanism() -> None:
    """After a restart, on another broker: the same. Who knows no secret cannot say what it will be."""
    one, again, other = (ScramUsers(dict, lambda key=key: key) for key in (b"one", b"one", b"other"))  # type: ignore[misc]
    salts = [salt_of(first_answer(users, "nobody")) for users in (one, again, other)]
    assert salts[0] == salts[1] != salts[2]
    # As a user's credentials: each is made by itself.
    assert salt_of(first_answer(one, "nobody", "SCRAM-SHA-512")) != salts[0]


def test_when_a_shape_comes_few_unknown_users_change_and_those_as_by_another_password() -> None:
    by_user = {
        str(iterations): {MECHANISM: ScramCredential.from_password(MECHANISM, PASSWORD, iterations=iterations)}
        for iterations in range(4096, 4105)
    }
    names = [f"unknown{number}" for number in range(200)]
    fewer = ScramUsers(lambda: dict(list(by_user.items())[:-1]), bytes)
    before = [first_answer(fewer, name) for name in names]
    after = [first_answer(ScramUsers(lambda: by_user, bytes), name) for name in names]
    changed = [(salt_of(old), salt_of(new)) for old, new in zip(before, after, strict=True) if shape(old) != shape(new)]
    assert 5 < len(changed) < 60
    assert all(old != new for old, new in changed)
    assert sum(salt_of(old) != salt_of(new) for old, new in zip(before, after, strict=True)) == len(changed)
