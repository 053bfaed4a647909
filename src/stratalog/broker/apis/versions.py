"""ApiVersions (key 18), versions 0-4: lists the APIs and versions that the broker serves.

A request of an unknown version gets a response of version 0 with UNSUPPORTED_VERSION (35) and the versions of this API,
so that the client can retry with one of them; the dispatcher calls `unsupported` for that. The header of a response has
no tags in any version, because the client does not know yet which versions it can use.

From version 3 on, responses have one feature, transaction.version 2 (KIP-890). Clients that know it let Produce and
TxnOffsetCommit add partitions to their transactions, and get a new producer epoch with each transaction.

Known gaps: no other feature is finalized, because there is no controller to finalize it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
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
    def __init__(self, served: Collection[ApiKey] = VERSIONS) -> None:
        self._keys = [
            {"api_key": int(key), "min_version": versions.lowest, "max_version": versions.highest}
            for key, versions in [*sorted(VERSIONS.items()), *OWN_VERSIONS.items()]
            if key in served or key in OWN_VERSIONS
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
    """Return the body of the response to an unknown version of ApiVersions."""
    lowest, highest, _ = VERSIONS[ApiKey.API_VERSIONS]
    keys = [{"api_key": int(ApiKey.API_VERSIONS), "min_version": lowest, "max_version": highest}]
    return encode_reply(ApiKey.API_VERSIONS, 0, {"error_code": ErrorCode.unsupported_version, "api_keys": keys})
