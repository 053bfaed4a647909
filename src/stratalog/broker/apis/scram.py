"""DescribeUserScramCredentials (key 50) 0, AlterUserScramCredentials (key 51) 0: the broker has no users.

Clients connect without SASL, so there are no credentials. Describing or deleting the credentials of a user gets
RESOURCE_NOT_FOUND. Setting credentials is refused with UNSUPPORTED_SASL_MECHANISM, because no client could use them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_MECHANISMS = (1, 2)  # SCRAM-SHA-256, SCRAM-SHA-512


class ScramApis:
    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe_user_scram_credentials,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter_user_scram_credentials,
        }

    def describe_user_scram_credentials(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        times = Counter(user.name for user in request.users or ())
        return {
            "error_code": ErrorCode.none,
            "error_message": "",
            "results": [{"user": name, "credential_infos": (), **_described(count)} for name, count in times.items()],
        }

    def alter_user_scram_credentials(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        results = {each.name: _not_set() for each in request.upsertions}
        for each in request.deletions:
            results[each.name] = _not_deleted(each.name, each.mechanism)
        return {"results": [{"user": name, **error} for name, error in results.items()]}


def _described(times: int) -> Reply:
    if times > 1:
        return _error(ErrorCode.duplicate_resource, "the user is in the request more than once")
    return _error(ErrorCode.resource_not_found, "the user has no SCRAM credentials: clients connect without SASL here")


def _not_set() -> Reply:
    return _error(
        ErrorCode.unsupported_sasl_mechanism,
        "SCRAM credentials can't be set: clients connect without SASL here, so no client could use them",
    )


def _not_deleted(name: str, mechanism: int) -> Reply:
    if not name:
        return _error(ErrorCode.unacceptable_credential, "the user's name is empty")
    if mechanism not in _MECHANISMS:
        message = f"mechanism is {mechanism}; it must be 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)"
        return _error(ErrorCode.unsupported_sasl_mechanism, message)
    return _error(ErrorCode.resource_not_found, "the user has no SCRAM credentials: clients connect without SASL here")


def _error(code: ErrorCode, message: str) -> Reply:
    return {"error_code": code, "error_message": message}
