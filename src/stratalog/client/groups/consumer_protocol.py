"""KIP-848, group.protocol=consumer: the broker assigns, and heartbeats carry it all. In the I/O thread.

A heartbeat's answer may have a target assignment. What is not in it is given up, what is new is taken, both by the
polling thread, and the next heartbeat says so; the coordinator gives no partition to anybody before its owner has said
that it gave it up. A heartbeat has only what changed since the last one that was answered.
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
LEAVING_STATIC = -2  # it may come back before its session is over, and then has its partitions again
_OUT = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}
_LONGEST_INTERVAL = 3600.0


class ConsumerMembership(Membership):
    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, subscription: Subscription, handoff: Handoff
    ) -> None:
        super().__init__(cluster, settings, subscription, handoff)
        self._member_id = str(uuid.uuid4())
        self._epoch = JOINING
        self._said: dict[str, Any] = {}  # what the coordinator knows by the last heartbeat that it answered
        self._target: dict[uuid.UUID, tuple[int, ...]] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._was_assigned = False  # the listener hears of the first assignment even if it is empty
        self._kick = asyncio.Event()  # a heartbeat is due at once
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
        """From the epoch that it is in: a heartbeat that failed is no end of the membership, and only one that owns
        nothing may join."""
        await self._resolve_pattern()
        self._said = {}
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
        changes = {name: value for name, value in state.items() if name not in self._said or self._said[name] != value}
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
            answer = await self._ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, body, timeout=self._settings.request_timeout_ms / 1000
            )
        except ClientError:
            self._said = {}  # what the coordinator heard of it is not known
            raise
        code = answer.error_code
        if code in _OUT:
            logger.info("group %s has let this member go: %s", self.group_id, code.name)
            self._is_lost = True
            self._epoch = JOINING
            return
        if code != ErrorCode.none:
            self._said = {}
            raise error_of(code, answer.error_message, about=f"group {self.group_id!r}")
        self._said = state
        self._epoch = answer.member_epoch
        self._member_id = answer.member_id or self._member_id
        self._interval = min(answer.heartbeat_interval.total_seconds(), _LONGEST_INTERVAL)
        if answer.assignment is not None:
            self._target = {one.topic_id: tuple(sorted(one.partitions)) for one in answer.assignment.topic_partitions}
            self._reconcile()

    def _state(self) -> dict[str, Any]:
        """All that a heartbeat may say, beside who says it."""
        state: dict[str, Any] = {
            "rack_id": self._settings.client_rack or None,
            "rebalance_timeout": self._settings.max_poll_interval_ms,
            "subscribed_topic_names": sorted(self._subscription.topics),
            "server_assignor": self._settings.group_remote_assignor,
            "topic_partitions": self._owned_by_id(),
        }
        return state

    def _owned_by_id(self) -> list[dict[str, Any]]:
        owned: dict[uuid.UUID, list[int]] = {}
        for place in self._owned:
            info = self._cluster.metadata.topics.get(place.topic)
            if info is not None and info.id is not None:
                owned.setdefault(info.id, []).append(place.partition)
        return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in owned.items()]

    # Reconciling

    def _reconcile(self) -> None:
        if self._reconciling is None:
            self._reconciling = asyncio.get_running_loop().create_task(self._follow_target())

    async def _follow_target(self) -> None:
        """Until what is owned is the target, which may change meanwhile. Heartbeats go on."""
        try:
            while self._target is not None:
                target, self._target = self._target, None
                places = await self._places(target)
                owned = set(self._owned)
                revoked, added = owned - places, places - owned
                if revoked:
                    await self._handoff.carry_out(Change.REVOKED, revoked)
                is_news = bool(added or revoked or not self._was_assigned)
                if self._target is None and is_news:
                    await self._handoff.carry_out(Change.ASSIGNED, added)
                    self._was_assigned = True
                self._said.pop("topic_partitions", None)  # reported even if unchanged: the coordinator waits for it
                if is_news:  # a coordinator that repeats an assignment gets its report at the usual interval
                    self._kick.set()
        except ClientError as error:
            logger.warning("group %s: the assignment can't be followed yet: %s", self.group_id, error)
            self._is_lost = True
            self._epoch = JOINING
            self._kick.set()
        finally:
            self._reconciling = None

    async def _places(self, target: dict[uuid.UUID, tuple[int, ...]]) -> set[TopicPartition]:
        """By name. A topic that was made just now may not be known here yet."""
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
        self._said = {}
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
