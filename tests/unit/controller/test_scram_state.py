"""Changes of SCRAM credentials, and their nodes in the metadata store."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.controller.scram_state import ScramDeletion, ScramUpsertion, plan_alter_scram
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.scram_nodes import decode_scram, encode_scram, scram_path, user_node, user_of_node
from headwater.logtier.metadata.store import Create, Delete, SetData, check_path
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.scram import ScramCredential

SHA_256, SHA_512 = 1, 2
SALT = b"0123456789abcdef"


def upsertion(user: str = "alice", mechanism: int = SHA_256, iterations: int = 4096) -> ScramUpsertion:
    salted = hashlib.pbkdf2_hmac("sha256", b"alice-secret", SALT, 4096)
    return ScramUpsertion(user, mechanism, iterations, SALT, salted)


def after(image: MetadataImage, *changes: ScramUpsertion | ScramDeletion) -> MetadataImage:
    plan = plan_alter_scram(
        image,
        [change for change in changes if isinstance(change, ScramDeletion)],
        [change for change in changes if isinstance(change, ScramUpsertion)],
    )
    assert [result.error for result in plan.results] == [None] * len(plan.results)
    return image.apply(
        [
            (operation.path, operation.data if isinstance(operation, Create | SetData) else None)
            for operation in plan.operations
        ]
    )


def error_of(image: MetadataImage, *changes: ScramUpsertion | ScramDeletion) -> tuple[ErrorCode, str]:
    plan = plan_alter_scram(
        image,
        [change for change in changes if isinstance(change, ScramDeletion)],
        [change for change in changes if isinstance(change, ScramUpsertion)],
    )
    [result] = plan.results
    assert result.error is not None
    assert plan.operations == []
    return result.error.code, result.error.message


def test_a_user_has_a_credential_for_each_mechanism_and_the_node_goes_with_the_last() -> None:
    image = after(MetadataImage(), upsertion())
    assert list(image.scram_credentials["alice"]) == ["SCRAM-SHA-256"]
    assert image.scram_credentials["alice"]["SCRAM-SHA-256"] == ScramCredential.from_password(
        "SCRAM-SHA-256", "alice-secret", salt=SALT
    )
    image = after(image, upsertion(mechanism=SHA_512))
    assert sorted(image.scram_credentials["alice"]) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    image = after(image, ScramDeletion("alice", SHA_256))
    assert list(image.scram_credentials["alice"]) == ["SCRAM-SHA-512"]
    [operation] = plan_alter_scram(image, [ScramDeletion("alice", SHA_512)], []).operations
    assert isinstance(operation, Delete)
    assert after(image, ScramDeletion("alice", SHA_512)).scram_credentials == {}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([upsertion("")], ErrorCode.unacceptable_credential, "Username must not be empty"),
        ([upsertion(mechanism=0)], ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
        ([upsertion(iterations=4095)], ErrorCode.unacceptable_credential, "Too few iterations"),
        ([upsertion(iterations=16_385)], ErrorCode.unacceptable_credential, "Too many iterations"),
        ([upsertion("a" * 1000)], ErrorCode.unacceptable_credential, "Username is too long"),
        (
            [ScramDeletion("alice", SHA_256)],
            ErrorCode.resource_not_found,
            "Attempt to delete a user credential that does not exist",
        ),
        (
            [upsertion(), upsertion(mechanism=SHA_512)],
            ErrorCode.duplicate_resource,
            "A user credential cannot be altered twice in the same request",
        ),
    ],
)
def test_a_change_is_refused_with_kafkas_code_and_words(
    changes: list[ScramUpsertion | ScramDeletion], code: ErrorCode, message: str
) -> None:
    assert error_of(MetadataImage(), *changes) == (code, message)


def test_one_users_mistake_does_not_keep_another_from_a_credential() -> None:
    plan = plan_alter_scram(MetadataImage(), [ScramDeletion("bob", SHA_256)], [upsertion()])
    assert [(result.user, result.error is None) for result in plan.results] == [("alice", True), ("bob", False)]
    assert len(plan.operations) == 1


def test_changes_and_credentials_tell_nothing_in_their_text() -> None:
    image = after(MetadataImage(), upsertion())
    for text in (repr(upsertion()), repr(image)):
        assert repr(SALT) not in text
        assert "stored_key" not in text


@given(st.text(min_size=1, max_size=60))
def test_every_name_of_a_user_has_a_node_of_its_own(user: str) -> None:
    try:
        user.encode()
    except UnicodeEncodeError:
        return
    check_path(scram_path(user))
    assert user_of_node(user_node(user)) == user


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(4096, 16384))
def test_credentials_survive_their_node(salt: bytes, key: bytes, iterations: int) -> None:
    credentials = {"SCRAM-SHA-256": ScramCredential(salt, key, key, iterations)}
    assert decode_scram("/x", encode_scram(credentials)) == credentials


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"credentials":1}', b'{"credentials":{"SCRAM-SHA-256":{"salt":"secret!"}}}']
)
def test_a_damaged_node_is_told_without_what_is_in_it(data: bytes) -> None:
    with pytest.raises(paths.CorruptNodeError) as caught:
        decode_scram("/config/scram/alice", data)
    assert "secret" not in str(caught.value)
