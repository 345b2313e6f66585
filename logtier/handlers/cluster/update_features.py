"""UpdateFeatures: changes the finalized levels of features (KIP-584).

Versions 0-2; before version 1 a flag permits a downgrade, later the type of the upgrade. An update takes effect as a
whole, or its first problem is that of all.
"""

from typing import Any

from headwater.logtier.controller.feature_state import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation

API_KEY = 57
VERSIONS = (0, 2)
#: The controller answers.
IS_FORWARDED = True


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change the levels, or only check them."""
    context.require_cluster(AclOperation.alter)
    updates = [
        FeatureUpdate(update.feature, update.max_version_level, _upgrade_type(update))
        for update in request.feature_updates
    ]
    try:
        await context.services.controller.update_features(
            updates, validate_only=getattr(request, "validate_only", False)
        )
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "results": []}
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None} for update in updates
        ],
    }


def _upgrade_type(update: Any) -> int:
    if hasattr(update, "upgrade_type"):
        return int(update.upgrade_type)
    return SAFE_DOWNGRADE if getattr(update, "allow_downgrade", False) else UPGRADE
