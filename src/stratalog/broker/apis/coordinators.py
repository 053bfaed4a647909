"""FindCoordinator (key 10), versions 0-6: finds the coordinator of a group or a transactional id, which is always this
broker.

A request can have several keys from version 4 on. It creates nothing.

Known gaps: a cluster of several brokers has no coordinators yet (COORDINATOR_NOT_AVAILABLE). Share groups do not exist
(INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratalog.broker.apis.groups import MOST_GROUPS, distinct
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import Address
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_GROUP, _TRANSACTION = 0, 1
_FIRST_VERSION_WITH_SEVERAL_KEYS = 4


class CoordinatorApi:
    def __init__(self, node_id: int, address: Callable[[], Address], *, is_available: bool = True) -> None:
        self._is_available = is_available
        self._node_id = node_id
        self._address = address

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.FIND_COORDINATOR: self.find_coordinator}

    def find_coordinator(self, request: Any, context: RequestContext) -> Reply:
        coordinator = self._find(getattr(request, "key_type", _GROUP))
        if context.api_version < _FIRST_VERSION_WITH_SEVERAL_KEYS:
            return coordinator
        keys = distinct(request.coordinator_keys, MOST_GROUPS, "FindCoordinator")
        return {"coordinators": [{**coordinator, "key": key} for key in keys]}

    def _find(self, key_type: int) -> Reply:
        if key_type not in (_GROUP, _TRANSACTION):
            return {
                "node_id": -1,
                "host": "",
                "port": -1,
                "error_code": ErrorCode.invalid_request,
                "error_message": f"key type is {key_type}; it must be 0 (group) or 1 (transactional id)",
            }
        if not self._is_available:
            return {
                "node_id": -1,
                "host": "",
                "port": -1,
                "error_code": ErrorCode.coordinator_not_available,
                "error_message": "a cluster of several brokers has no groups and no transactions yet",
            }
        address = self._address()
        return {
            "node_id": self._node_id,
            "host": address.host,
            "port": address.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }
