"""DescribeQuorum (key 55) 0-2, UpdateFeatures (key 57) 0-2, UnregisterBroker (key 64) 0: requests to the controller.

A single broker is its own controller. The metadata is in a file or in ZooKeeper instead of a log.

- DescribeQuorum: the controller is the only voter and the leader of __cluster_metadata. The offsets are 0, because that
  log does not exist. Other partitions get UNKNOWN_TOPIC_OR_PARTITION.
- UpdateFeatures: the levels of features are fixed in the program. Setting a feature to its current level succeeds. Any
  other level, and a feature that is not in ApiVersions, gets INVALID_UPDATE_VERSION, and the whole request is refused.
- UnregisterBroker: a single broker can't be unregistered (INVALID_REQUEST), and no other broker is registered
  (BROKER_ID_NOT_REGISTERED). In a cluster, a broker that is down can be unregistered: it leaves every ISR, and is not
  eligible to lead any more. A broker that is alive is refused: it would register again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stratalog.broker.apis.error_fields import error_fields
from stratalog.broker.apis.versions import FINALIZED_LEVELS
from stratalog.broker.metadata.membership import BrokersAndPlacements
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.clock import Clock
from stratalog.errors import StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.storage import names

_LEADER_EPOCH = 1  # the first, because there is never an election
_UPGRADE_TYPES = (1, 2, 3)  # an upgrade, a safe downgrade, an unsafe one
_LAST_WITH_RESULTS = 1


class ControllerApis:
    def __init__(
        self, membership: BrokersAndPlacements, clock: Clock, unregister: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """`unregister` removes a broker that is down from the cluster, by its node id, or raises StratalogError. None
        for a single broker."""
        self._membership = membership
        self._clock = clock
        self._unregister = unregister

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
            "nodes": self._nodes() if is_known else (),
        }

    def _quorum(self, index: int) -> Reply:
        now = self._clock.now_ms()
        voter = {
            "replica_id": self._membership.controller,
            "replica_directory_id": None,
            "log_end_offset": 0,
            "last_fetch_timestamp": now,
            "last_caught_up_timestamp": now,
        }
        return {
            "partition_index": index,
            "error_code": ErrorCode.none,
            "error_message": "",
            "leader_id": self._membership.controller,
            "leader_epoch": _LEADER_EPOCH,
            "high_watermark": 0,
            "current_voters": [voter],
            "observers": (),
        }

    def _nodes(self) -> list[Reply]:
        return [
            {
                "node_id": broker.node_id,
                "listeners": [{"name": "PLAINTEXT", "host": broker.host, "port": broker.port}],
            }
            for broker in self._membership.brokers()
            if broker.node_id == self._membership.controller
        ]

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

    async def unregister_broker(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        if self._unregister is not None:
            try:
                await self._unregister(request.broker_id)
            except StratalogError as error:
                return error_fields(error)
            return {"error_code": ErrorCode.none, "error_message": None}
        only = self._membership.node_id
        if request.broker_id == only:
            message = f"broker {only} can't be unregistered: it is the only broker; stop it instead"
            return {"error_code": ErrorCode.invalid_request, "error_message": message}
        message = f"broker {request.broker_id} is not registered; the only broker is {only}"
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
