"""Decisions of the controller on SCRAM credentials: (image, changes) to store operations or errors. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.scram_nodes import USER_NODE_LENGTH_MAX, encode_scram, scram_path, user_node
from headwater.logtier.metadata.store import Create, Delete, SetData
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, ScramCredential

SCRAM_MECHANISMS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Mechanisms by the protocol's numbers (KIP-554)."""


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A credential to be deleted. `mechanism` is a number, because clients may send any."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A credential to be created or replaced, with a password salted by the client."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramResult:
    """The result of one user's changes."""

    user: str
    error: KafkaError | None = None


def plan_alter_scram(
    image: MetadataImage, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
) -> Plan[ScramResult]:
    """Change credentials, each user accepted or rejected separately; a user may be listed once per request."""
    changes: dict[str, ScramDeletion | ScramUpsertion] = {}
    errors: dict[str, KafkaError] = {}
    asked: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    for change in asked:
        user = change.user
        if user in errors:
            continue
        if user in changes:
            del changes[user]
            errors[user] = KafkaError(
                ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
            )
            continue
        error = _problem(image, change)
        if error is None:
            changes[user] = change
        else:
            errors[user] = error
    plan: Plan[ScramResult] = Plan()
    for user, change in changes.items():
        _apply(plan, image, change)
        plan.results.append(ScramResult(user))
    plan.results.extend(ScramResult(user, error) for user, error in errors.items())
    return plan


def _problem(image: MetadataImage, change: ScramDeletion | ScramUpsertion) -> KafkaError | None:
    if not change.user:
        return KafkaError(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = SCRAM_MECHANISMS.get(change.mechanism)
    if mechanism is None:
        return KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(change, ScramDeletion):
        if mechanism not in image.scram_credentials.get(change.user, {}):
            return KafkaError(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
        return None
    if change.iterations < ITERATIONS_MIN:
        return KafkaError(ErrorCode.unacceptable_credential, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        return KafkaError(ErrorCode.unacceptable_credential, "Too many iterations")
    if len(user_node(change.user)) > USER_NODE_LENGTH_MAX:
        return KafkaError(ErrorCode.unacceptable_credential, "Username is too long")
    if len(change.salt) > SALT_BYTES_MAX or not change.salted_password:
        return KafkaError(ErrorCode.unacceptable_credential, "Salt is too long, or the salted password is empty")
    return None


def _apply(plan: Plan[ScramResult], image: MetadataImage, change: ScramDeletion | ScramUpsertion) -> None:
    mechanism = SCRAM_MECHANISMS[change.mechanism]
    current = image.scram_credentials.get(change.user, {})
    path = scram_path(change.user)
    altered = {name: credential for name, credential in current.items() if name != mechanism}
    if isinstance(change, ScramUpsertion):
        altered[mechanism] = ScramCredential.from_salted_password(
            mechanism, change.salted_password, change.salt, change.iterations
        )
    if not altered:
        plan.operations.append(Delete(path))
    elif current:
        plan.operations.append(SetData(path, encode_scram(altered)))
    else:
        plan.operations.append(Create(path, encode_scram(altered)))
