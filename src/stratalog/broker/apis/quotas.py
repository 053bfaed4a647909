"""DescribeClientQuotas (key 48) 0-1, AlterClientQuotas (key 49) 0-1: the broker has no quotas.

The broker throttles no client, so it describes no quotas for users, client ids or addresses. Setting a quota is refused
with INVALID_REQUEST, because the broker would not enforce it. Removing a quota succeeds, as in Kafka for a quota that
does not exist.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_ENTITY_TYPES = ("user", "client-id", "ip")
_MATCH_TYPES = (0, 1, 2)  # this name, the default, any


class QuotaApis:
    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe_client_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alter_client_quotas,
        }

    def describe_client_quotas(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        try:
            _check_filter(request.components)
        except RefusedError as error:
            return {**error_fields(error), "entries": None}
        return {"error_code": ErrorCode.none, "error_message": "", "entries": ()}

    def alter_client_quotas(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return {"entries": [_altered(entry) for entry in request.entries]}


def _check_filter(components: Any) -> None:
    """Raise the errors that Kafka raises for a filter."""
    times = Counter(component.entity_type for component in components)
    for component in components:
        kind = component.entity_type
        if component.match_type not in _MATCH_TYPES:
            raise _invalid(f"match type is {component.match_type}; it must be 0 (name), 1 (default) or 2 (any)")
        if not kind:
            raise _invalid("an entity type is empty")
        if kind not in _ENTITY_TYPES:
            raise RefusedError(ErrorCode.unsupported_version, f"entity type is {kind!r}; {_KNOWN}")
        if times[kind] > 1:
            raise _invalid(f"entity type {kind!r} is in the filter more than once")
    if "ip" in times and len(times) > 1:
        raise _invalid("entity type 'ip' can't be combined with others")


def _altered(entry: Any) -> Reply:
    entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
    try:
        _check_alteration(entry)
    except RefusedError as error:
        return {**error_fields(error), "entity": entity}
    return {"error_code": ErrorCode.none, "error_message": None, "entity": entity}


def _check_alteration(entry: Any) -> None:
    if not entry.entity:
        raise _invalid("the entity is empty")
    for each in entry.entity:
        if each.entity_type not in _ENTITY_TYPES:
            raise _invalid(f"entity type is {each.entity_type!r}; {_KNOWN}")
    for operation in entry.ops:
        if not operation.remove:
            raise _invalid(f"{operation.key} can't be set: this broker has no quotas and throttles no client")


_KNOWN = "it must be user, client-id or ip"


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)
