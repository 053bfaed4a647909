"""ApiVersions (key 18), versions 0-4: what is served.

A version that is not known is answered with version 0's body and UNSUPPORTED_VERSION (35), with the range of this API
in it, so that the client can ask again: the dispatcher calls `unsupported` for that. The header of the response has no
tags in any version, as a client can't know yet which versions it may speak.

From version 3 on one feature is told of, transaction.version 2 (KIP-890): clients that know it leave it to Produce and
TxnOffsetCommit to add partitions to their transactions, and get a new epoch with each.

Known gaps: no other features are finalized, as there is no controller to finalize them.
"""

from __future__ import annotations

import re
from typing import Any

from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import OWN_VERSIONS, VERSIONS, ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import encode_reply

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3
FINALIZED_LEVELS = {"transaction.version": 2}
_FEATURES = {
    "supported_features": [
        {"name": name, "min_version": 0, "max_version": level} for name, level in FINALIZED_LEVELS.items()
    ],
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in FINALIZED_LEVELS.items()
    ],
}


class VersionsApi:
    def __init__(self) -> None:
        self._keys = [
            {"api_key": int(key), "min_version": versions.lowest, "max_version": versions.highest}
            for key, versions in [*sorted(VERSIONS.items()), *OWN_VERSIONS.items()]
        ]
        self._encoded: dict[int, bytearray] = {}

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.API_VERSIONS: self.api_versions}

    def api_versions(self, request: Any, context: RequestContext) -> Reply | bytearray:
        version = context.api_version
        if version >= _FIRST_WITH_SOFTWARE and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return {"error_code": ErrorCode.invalid_request, "api_keys": []}
        if version not in self._encoded:
            self._encoded[version] = encode_reply(
                ApiKey.API_VERSIONS, version, {"error_code": 0, "api_keys": self._keys, **_FEATURES}
            )
        return self._encoded[version]


def unsupported() -> bytearray:
    """The body for a client whose version of ApiVersions is not known."""
    lowest, highest, _ = VERSIONS[ApiKey.API_VERSIONS]
    keys = [{"api_key": int(ApiKey.API_VERSIONS), "min_version": lowest, "max_version": highest}]
    return encode_reply(ApiKey.API_VERSIONS, 0, {"error_code": ErrorCode.unsupported_version, "api_keys": keys})
