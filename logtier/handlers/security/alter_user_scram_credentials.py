"""AlterUserScramCredentials: sets SCRAM credentials, with passwords salted and hashed by the client (KIP-554)."""

from typing import Any

from headwater.logtier.controller.scram_state import ScramDeletion, ScramResult, ScramUpsertion
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 51
VERSIONS = (0, 0)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change each user's credential; requires ALTER on the cluster."""
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster):
        refusal = KafkaError(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
        users = dict.fromkeys(change.name for change in (*request.deletions, *request.upsertions))
        return {"results": [_result(ScramResult(user, refusal)) for user in users]}
    results = await context.services.controller.alter_scram_credentials(
        [ScramDeletion(deletion.name, deletion.mechanism) for deletion in request.deletions],
        [
            ScramUpsertion(
                upsertion.name,
                upsertion.mechanism,
                upsertion.iterations,
                bytes(upsertion.salt),
                bytes(upsertion.salted_password),
            )
            for upsertion in request.upsertions
        ],
    )
    return {"results": [_result(result) for result in results]}


def _result(result: ScramResult) -> dict[str, Any]:
    error = result.error
    return {
        "user": result.user,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
    }
