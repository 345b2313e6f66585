"""OffsetCommit: commits a group's offsets; answered when they are in the log of `__consumer_offsets`."""

from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.requested_commits import requested_commits
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.messages import milliseconds
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 8
VERSIONS = (2, 9)

_LEADER_EPOCH_FROM: Final = 6
_NO_RETENTION_OF_ITS_OWN_MS: Final = -1


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Commit the offsets of existing partitions; unknown partitions and too long metadata are rejected separately."""
    now_ms = context.services.clock.now_ms()
    expire_timestamp_ms = _expire_timestamp_ms(request, now_ms)
    may_commit = context.is_authorized(AclOperation.read, ResourceType.group, request.group_id)
    requested = requested_commits(
        request,
        context,
        now_ms,
        None if may_commit else ErrorCode.group_authorization_failed,
        has_leader_epoch=context.api_version >= _LEADER_EPOCH_FROM,
        expire_timestamp_ms=expire_timestamp_ms,
    )
    if request.topics and not requested.commits:
        return {"topics": requested.answers}
    try:
        await context.services.groups.await_load(request.group_id)
        await context.services.groups.commit_offsets(
            request.group_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            generation_id=request.generation_id_or_member_epoch,
            commits=requested.commits,
            api_version=context.api_version,
        )
    except KafkaError as error:
        requested.refuse(error.code)
    return {"topics": requested.answers}


def _expire_timestamp_ms(request: Any, now_ms: int) -> int | None:
    """Return the client's expiry of its offsets, None without one (versions 2 to 4 only, removed by KIP-211)."""
    retention = getattr(request, "retention_time", None)
    if retention is None or milliseconds(retention) == _NO_RETENTION_OF_ITS_OWN_MS:
        return None
    return now_ms + milliseconds(retention)
