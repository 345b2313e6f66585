"""Whether this broker may still answer for the offsets of groups, as the other replicas say, once for each request."""

import asyncio
from collections.abc import Iterable

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType


async def check_coordinators(group_ids: Iterable[str], context: RequestContext) -> None:
    """Check the leaderships of the groups' partitions, for `coordinator_error`; a later slice has the same answer.

    Groups that the client may not describe are not looked at.
    """
    checks = context.services.leadership_checks
    if checks is None:
        return
    known = context.checked_leaderships
    if known is None:
        known = context.checked_leaderships = {}
    unknown: dict[TopicPartition, None] = {}
    for group_id in group_ids:
        if context.is_authorized(AclOperation.describe, ResourceType.group, group_id, log_denied=False):
            try:
                key = context.services.groups.loaded_partition(group_id)
            except KafkaError:
                continue  # whoever reads the offsets has it, too
            if key not in known:
                unknown[key] = None
    errors = await asyncio.gather(*map(checks.check, unknown), return_exceptions=True)
    for key, error in zip(unknown, errors, strict=True):
        if error is not None and not isinstance(error, KafkaError):
            raise error
        known[key] = error


def coordinator_error(group_id: str, context: RequestContext) -> KafkaError | None:
    """Return why the offsets of a group may not be answered, None if they may; `check_coordinators` has been called.

    Raises:
        KafkaError: This broker does not coordinate the group, or is loading it.
    """
    if context.services.leadership_checks is None:
        return None
    key = context.services.groups.loaded_partition(group_id)
    checked = context.checked_leaderships
    if checked is None or key not in checked:
        return KafkaError(ErrorCode.coordinator_load_in_progress, f"{key} has been loaded meanwhile")
    return checked[key]
