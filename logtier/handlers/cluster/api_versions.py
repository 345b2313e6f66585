"""ApiVersions: the supported versions of all APIs (KIP-35, KIP-511); the first request of nearly every connection.

The response header has version 0 in every version. An unsupported version is answered with UNSUPPORTED_VERSION in a
body of version 0 that lists this API, so that the client can retry. Features are reported from version 3 on.
"""

import re
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.features import SUPPORTED_FEATURES

API_KEY = 18
VERSIONS = (0, 4)

_FEATURES_FROM_ZERO_FROM = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List every API; the table is derived from the handlers, and so always correct."""
    name = getattr(request, "client_software_name", None)
    software = (name, getattr(request, "client_software_version", None))
    if name is not None and not all(part and _SOFTWARE.fullmatch(part) for part in software):
        return {"error_code": ErrorCode.invalid_request, "api_keys": []}
    finalized = context.services.metadata.image.features
    return {
        "error_code": ErrorCode.none,
        "api_keys": [
            {"api_key": key, "min_version": first, "max_version": last}
            for key, (first, last) in sorted(context.services.advertised_versions.items())
        ],
        "supported_features": [
            {"name": name, "min_version": feature.first, "max_version": feature.last}
            for name, feature in SUPPORTED_FEATURES.items()
            # Clients before version 4 reject a level of 0 (KAFKA-17011).
            if feature.first > 0 or context.api_version >= _FEATURES_FROM_ZERO_FROM
        ],
        "finalized_features_epoch": finalized.epoch,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level}
            for name, level in finalized.levels.items()
        ],
    }


def unsupported_version() -> dict[str, Any]:
    """Return the response to an unsupported version of this API, to be encoded in version 0."""
    first, last = VERSIONS
    return {
        "error_code": ErrorCode.unsupported_version,
        "api_keys": [{"api_key": API_KEY, "min_version": first, "max_version": last}],
    }
