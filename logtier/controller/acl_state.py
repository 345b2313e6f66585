"""Decisions of the controller on access control lists: (image, command) to store operations or an error. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata.acl_nodes import acl_name, acl_path, encode_acl
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Create, Delete
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.acls import AclBinding, AclFilter, binding_problem, filter_problem

MAX_CHANGES_PER_REQUEST: Final = 10_000
"""Maximum number of bindings created or deleted by one request: Kafka's limit."""


@dataclass(frozen=True, slots=True)
class AclDeletion:
    """The result of one filter of a deletion: the deleted bindings, or an error."""

    deleted: tuple[AclBinding, ...] = ()
    error: KafkaError | None = None


def plan_create_acls(image: MetadataImage, bindings: Sequence[AclBinding]) -> Plan[KafkaError | None]:
    """Create bindings, each accepted or rejected separately; existing bindings are accepted."""
    plan: Plan[KafkaError | None] = Plan()
    known = set(image.acls)
    for binding in bindings:
        problem = binding_problem(binding)
        if problem is not None:
            plan.results.append(KafkaError(ErrorCode.invalid_request, problem))
            continue
        plan.results.append(None)
        name = acl_name(binding)
        if name not in known:
            known.add(name)
            plan.operations.append(Create(acl_path(binding), encode_acl(binding)))
    _check_size(len(plan.operations))
    return plan


def plan_delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Plan[AclDeletion]:
    """Delete the bindings that match filters. A binding that matches several is deleted once, and reported for each."""
    plan: Plan[AclDeletion] = Plan()
    removed: set[AclBinding] = set()
    for wanted in filters:
        problem = filter_problem(wanted)
        if problem is not None:
            plan.results.append(AclDeletion(error=KafkaError(ErrorCode.invalid_request, problem)))
            continue
        found = tuple(binding for binding in image.acls.values() if wanted.matches(binding))
        plan.results.append(AclDeletion(found))
        plan.operations.extend(Delete(acl_path(binding)) for binding in found if binding not in removed)
        removed.update(found)
    _check_size(len(plan.operations))
    return plan


def _check_size(changes: int) -> None:
    if changes > MAX_CHANGES_PER_REQUEST:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"A request may create or delete {MAX_CHANGES_PER_REQUEST} access control lists, not {changes}; split it.",
        )
