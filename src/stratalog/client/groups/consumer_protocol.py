"""The group protocol of KIP-848 (group.protocol=consumer): the broker assigns, and members only send heartbeats. Runs
on the I/O thread.

The response to a heartbeat may contain a target assignment. The polling thread gives up partitions that are not in it
and takes new ones, and the next heartbeat reports that. The coordinator assigns a partition to another member only
after its owner has reported that it gave the partition up. A heartbeat contains only the fields that have changed since
the last heartbeat that got a response.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.commits import CommittingMember
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import error_of
from stratalog.client.groups.handoff import Change, Handoff
from stratalog.client.groups.membership import LEAVE_SECONDS, Membership
from stratalog.client.metadata import TopicPartition
from stratalog.client.subscription import Subscription
from stratalog.errors import ClientError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)
JOINING = 0
LEAVING = -1
LEAVING_STATIC = -2  # a static member that returns before its session ends gets its partitions back
_OUT = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}
_LONGEST_INTERVAL = 3600.0


class ConsumerMembership(Membership):
    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, subscription: Subscription, handoff: Handoff
    ) -> None:
        super().__init__(cluster, settings, subscription, handoff)
        self._member_id = str(uuid.uuid4())
        self._epoch = JOINING
        self._reported: dict[str, Any] = {}  # the state that the coordinator knows from the last answered heartbeat
        self._target: dict[uuid.UUID, tuple[int, ...]] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._was_assigned = False  # the listener is called for the first assignment even if it is empty
        self._kick = asyncio.Event()  # a heartbeat is due now
        self._interval = settings.heartbeat_interval_ms / 1000

    @property
    def identity(self) -> CommittingMember:
        return CommittingMember(
            self._epoch if self._epoch > 0 else -1, self._member_id, self._settings.group_instance_id
        )

    def start(self) -> None:
        super().start()
        self._kick.set()

    def _on_topics_changed(self) -> None:
        self._subscription.topics = self._matching(self._cluster.metadata)
        self._kick.set()

    async def _take_part(self) -> None:
        """Send heartbeats from the current epoch on. A failed heartbeat does not end the membership, and a member may
        join only while it owns nothing."""
        await self._resolve_pattern()
        self._reported = {}
        try:
            while not self._is_lost:
                self._kick.clear()
                if self._handoff.is_late():
                    await self._go_away()
                    return
                await self._beat()
                try:
                    async with asyncio.timeout(self._interval):
                        await self._kick.wait()
                except TimeoutError:
                    pass
        finally:
            await self._end_reconciling()

    async def _beat(self) -> None:
        state = self._state()
        changes = {
            name: value for name, value in state.items() if name not in self._reported or self._reported[name] != value
        }
        body = {
            "group_id": self.group_id,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": self._settings.group_instance_id,
            "rack_id": None,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        } | changes
        try:
            response = await self._ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, body, timeout=self._settings.request_timeout_ms / 1000
            )
        except ClientError:
            self._reported = {}  # it is unknown whether the coordinator received this heartbeat
            raise
        code = response.error_code
        if code in _OUT:
            logger.info("group %s has removed this member: %s", self.group_id, code.name)
            self._is_lost = True
            self._epoch = JOINING
            return
        if code != ErrorCode.none:
            self._reported = {}
            raise error_of(code, response.error_message, about=f"group {self.group_id!r}")
        self._reported = state
        self._epoch = response.member_epoch
        self._member_id = response.member_id or self._member_id
        self._interval = min(response.heartbeat_interval.total_seconds(), _LONGEST_INTERVAL)
        if response.assignment is not None:
            self._target = {
                topic.topic_id: tuple(sorted(topic.partitions)) for topic in response.assignment.topic_partitions
            }
            self._reconcile()

    def _state(self) -> dict[str, Any]:
        """Return the fields of a heartbeat that are sent only when they change."""
        return {
            "rack_id": self._settings.client_rack or None,
            "rebalance_timeout": self._settings.max_poll_interval_ms,
            "subscribed_topic_names": sorted(self._subscription.topics),
            "server_assignor": self._settings.group_remote_assignor,
            "topic_partitions": self._owned_by_id(),
        }

    def _owned_by_id(self) -> list[dict[str, Any]]:
        owned: dict[uuid.UUID, list[int]] = {}
        for partition in self._owned:
            info = self._cluster.metadata.topics.get(partition.topic)
            if info is not None and info.id is not None:
                owned.setdefault(info.id, []).append(partition.partition)
        return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in owned.items()]

    # Reconciling

    def _reconcile(self) -> None:
        if self._reconciling is None:
            self._reconciling = asyncio.get_running_loop().create_task(self._follow_target())

    async def _follow_target(self) -> None:
        """Change the owned partitions until they match the target, which may change meanwhile. Heartbeats continue."""
        try:
            while self._target is not None:
                target, self._target = self._target, None
                partitions = await self._partitions(target)
                owned = set(self._owned)
                revoked, added = owned - partitions, partitions - owned
                if revoked:
                    await self._handoff.carry_out(Change.REVOKED, revoked)
                has_changed = bool(added or revoked or not self._was_assigned)
                if self._target is None and has_changed:
                    await self._handoff.carry_out(Change.ASSIGNED, added)
                    self._was_assigned = True
                self._reported.pop(
                    "topic_partitions", None
                )  # report it even if unchanged: the coordinator waits for it
                if has_changed:  # the report of a repeated assignment can wait for the next heartbeat
                    self._kick.set()
        except ClientError as error:
            logger.warning("group %s: can't follow the assignment yet, and joins again: %s", self.group_id, error)
            self._is_lost = True
            self._epoch = JOINING
            self._kick.set()
        finally:
            self._reconciling = None

    async def _partitions(self, target: dict[uuid.UUID, tuple[int, ...]]) -> set[TopicPartition]:
        """Return the target by topic name. The metadata may not have the id of a new topic yet, so refresh it then."""
        failures = 0
        while True:
            metadata = self._cluster.metadata
            names = {topic_id: metadata.name_of(topic_id) for topic_id in target}
            if None not in names.values() or failures > 5:
                return {
                    TopicPartition(name, partition)
                    for topic_id, name in names.items()
                    if name is not None
                    for partition in target[topic_id]
                }
            failures += 1
            self._cluster.track_topics(self._subscription.topics)
            await self._cluster.refresh()
            await asyncio.sleep(self._backoff.seconds(failures) if failures > 1 else 0)

    async def _end_reconciling(self) -> None:
        self._target = None
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.wait([self._reconciling])

    # Leaving

    async def _leave(self) -> None:
        epoch, self._epoch = self._epoch, JOINING
        self._reported = {}
        if epoch <= JOINING:
            return
        static = self._settings.group_instance_id is not None and not self.is_away
        body = {
            "group_id": self.group_id,
            "member_id": self._member_id,
            "member_epoch": LEAVING_STATIC if static else LEAVING,
            "instance_id": self._settings.group_instance_id,
            "rebalance_timeout": -1,
        }
        node = await self._cluster.coordinator(CoordinatorKind.GROUP, self.group_id, timeout=LEAVE_SECONDS)
        await self._cluster.request(node, ApiKey.CONSUMER_GROUP_HEARTBEAT, body, timeout=LEAVE_SECONDS)
