"""UpdateFeatures: changes the finalized levels of features (KIP-584).

The levels follow the release: a request for the present level is accepted, any other is rejected with the reason.
"""

from typing import Any, Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.features import FEATURES
from headwater.logtier.security.operations import AclOperation

API_KEY = 57
VERSIONS = (0, 2)
#: The controller answers.
IS_FORWARDED = True

_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Reject all updates if one is not possible, as in Kafka."""
    context.require_cluster(AclOperation.alter)
    for update in request.feature_updates:
        problem = _problem(update)
        if problem is not None:
            level = update.max_version_level
            return {
                "error_code": ErrorCode.invalid_update_version,
                "error_message": "The update failed for all features since the following feature had an error: "
                f"Invalid update version {level} for feature {update.feature[:200]}. {problem}",
                "results": [],
            }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            {"feature": update.feature, "error_code": ErrorCode.none, "error_message": None}
            for update in request.feature_updates
        ],
    }


def _problem(update: Any) -> str | None:
    feature = FEATURES.get(update.feature)
    level = update.max_version_level
    if level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return "This broker does not support this feature."
    if not feature.first <= level <= feature.last:
        return f"This broker only supports versions {feature.first}-{feature.last}"
    if level == feature.finalized:
        return None
    if level < feature.finalized and not _may_downgrade(update):
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    return f"The level of this feature follows the release, which has {feature.finalized}."


def _may_downgrade(update: Any) -> bool:
    """Whether the request permits a downgrade: a flag in version 0, a type in later ones."""
    if hasattr(update, "upgrade_type"):
        return update.upgrade_type in (_SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE)
    return bool(getattr(update, "allow_downgrade", False))
