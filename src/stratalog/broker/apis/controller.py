"""DescribeQuorum (key 55) 0-2, UpdateFeatures (key 57) 0-2, UnregisterBroker (key 64) 0: requests to the controller.

This broker is its own controller, and keeps the metadata in a file instead of a log.

- DescribeQuorum: this broker is the only voter and the leader of __cluster_metadata. The offsets are 0, because that
  log does not exist. Other partitions get UNKNOWN_TOPIC_OR_PARTITION.
- UpdateFeatures: the levels of features are fixed in the program. Setting a feature to its current level succeeds. Any
  other level, and a feature that is not in ApiVersions, gets INVALID_UPDATE_VERSION, and the whole request is refused.
- UnregisterBroker: this broker can't be unregistered (INVALID_REQUEST), and no other broker is registered
  (BROKER_ID_NOT_REGISTERED).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratalog.broker.apis.versions import FINALIZED_LEVELS
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import Address
from stratalog.clock import Clock
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage import names

_LEADER_EPOCH = 1  # the first, because there is never an election
_UPGRADE_TYPES = (1, 2, 3)  # an upgrade, a safe downgrade, an unsafe one
_LAST_WITH_RESULTS = 1


class ControllerApis:
    def __init__(self, node_id: int, address: Callable[[], Address], clock: Clock) -> None:
        """`address` returns the address that responses give to clients."""
        self._node_id = node_id
        self._address = address
        self._clock = clock

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_QUORUM: self.describe_quorum,
            ApiKey.UPDATE_FEATURES: self.update_features,
            ApiKey.UNREGISTER_BROKER: self.unregister_broker,
        }

    # DescribeQuorum

    def describe_quorum(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        requested = [
            (topic.topic_name, [partition.partition_index for partition in topic.partitions])
            for topic in request.topics
        ]
        is_known = requested == [(names.CLUSTER_METADATA_TOPIC, [0])]
        describe = self._quorum if is_known else _no_quorum
        return {
            "error_code": ErrorCode.none,
            "error_message": "",
            "topics": [
                {"topic_name": name, "partitions": [describe(index) for index in indexes]}
                for name, indexes in requested
            ],
            "nodes": [self._node()] if is_known else (),
        }

    def _quorum(self, index: int) -> Reply:
        now = self._clock.now_ms()
        voter = {
            "replica_id": self._node_id,
            "replica_directory_id": None,
            "log_end_offset": 0,
            "last_fetch_timestamp": now,
            "last_caught_up_timestamp": now,
        }
        return {
            "partition_index": index,
            "error_code": ErrorCode.none,
            "error_message": "",
            "leader_id": self._node_id,
            "leader_epoch": _LEADER_EPOCH,
            "high_watermark": 0,
            "current_voters": [voter],
            "observers": (),
        }

    def _node(self) -> Reply:
        host, port = self._address()
        return {"node_id": self._node_id, "listeners": [{"name": "PLAINTEXT", "host": host, "port": port}]}

    # UpdateFeatures

    def update_features(self, request: Any, context: RequestContext) -> Reply:
        for update in request.feature_updates:
            refusal = _refusal(update)
            if refusal is not None:
                message = f"nothing was updated: feature {update.feature[:100]!r}: {refusal}"
                return {"error_code": ErrorCode.invalid_update_version, "error_message": message, "results": ()}
        results: list[Reply] = []
        if context.api_version <= _LAST_WITH_RESULTS:
            results = [
                {"feature": feature, "error_code": ErrorCode.none, "error_message": None}
                for feature in dict.fromkeys(update.feature for update in request.feature_updates)
            ]
        return {"error_code": ErrorCode.none, "error_message": None, "results": results}

    # UnregisterBroker

    def unregister_broker(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        if request.broker_id == self._node_id:
            message = f"broker {self._node_id} can't be unregistered: it is the only broker; stop it instead"
            return {"error_code": ErrorCode.invalid_request, "error_message": message}
        message = f"broker {request.broker_id} is not registered; the only broker is {self._node_id}"
        return {"error_code": ErrorCode.broker_id_not_registered, "error_message": message}


def _no_quorum(index: int) -> Reply:
    return {
        "partition_index": index,
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": f"only {names.CLUSTER_METADATA_TOPIC}-0 has a quorum",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": (),
        "observers": (),
    }


def _refusal(update: Any) -> str | None:
    level = FINALIZED_LEVELS.get(update.feature)
    if level is None:
        return "this broker does not have it"
    if getattr(update, "upgrade_type", _UPGRADE_TYPES[0]) not in _UPGRADE_TYPES:
        return f"upgrade type is {update.upgrade_type}; it must be 1, 2 or 3"
    if update.max_version_level != level:
        return (
            f"its level is {level} and can't be changed to {update.max_version_level}: levels are fixed in the program"
        )
    return None
