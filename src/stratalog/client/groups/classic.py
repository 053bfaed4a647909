"""The classic group protocol: members join, the leader assigns, and all send heartbeats until something changes. Then
they join again.

With eager rebalancing, members give up all partitions before they join. With cooperative rebalancing (KIP-429), which a
member uses if all its assignors are cooperative, it keeps reading its partitions during the rebalance. Afterwards it
gives up those that move, and a second rebalance assigns them. Runs on the I/O thread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.commits import CommittingMember
from stratalog.client.connections import Purpose
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.errors import BrokerUnreachableError, RequestTimeoutError, error_of
from stratalog.client.groups.assignors import Assignor, Member, assignors_of
from stratalog.client.groups.handoff import Change, Handoff
from stratalog.client.groups.member_data import (
    NO_GENERATION,
    MemberAssignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from stratalog.client.groups.membership import Membership
from stratalog.client.metadata import MetadataSnapshot, TopicPartition
from stratalog.client.subscription import Subscription
from stratalog.errors import ClientError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_response, encode_request

logger = logging.getLogger(__name__)
PROTOCOL_TYPE = "consumer"
_FAST_ROUNDS = 4  # joins without an assignment that follow each other at once; after that, the member backs off
_EXTRA_SECONDS = 5.0  # on top of the time that the coordinator itself waits for other members
_OUT = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}
_COORDINATOR = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}


class ClassicMembership(Membership):
    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, subscription: Subscription, handoff: Handoff
    ) -> None:
        super().__init__(cluster, settings, subscription, handoff)
        self._assignors: list[Assignor] = assignors_of(settings.partition_assignment_strategy)
        self._is_cooperative = all(assignor.is_cooperative for assignor in self._assignors)
        self._member_id = ""
        self._generation = NO_GENERATION
        self._last: list[TopicPartition] = []  # the last assignment, for the sticky assignor
        self._last_generation = NO_GENERATION
        self._rejoin = asyncio.Event()
        self._beats = False
        self._beating: asyncio.Task[None] | None = None
        self._rounds = 0  # consecutive joins that ended without an assignment
        self._led: dict[str, int] | None = None  # partition counts of the group's topics, if this member assigned them

    @property
    def identity(self) -> CommittingMember:
        return CommittingMember(self._generation, self._member_id, self._settings.group_instance_id)

    def start(self) -> None:
        super().start()
        self._rejoin.set()

    def _on_topics_changed(self) -> None:
        self._rejoin.set()

    def _on_metadata(self, metadata: MetadataSnapshot) -> None:
        super()._on_metadata(metadata)
        if self._led is not None and self._counts(metadata, self._led) != self._led:
            self._rejoin.set()

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        await super().stop()
        self._last, self._last_generation, self._led = [], NO_GENERATION, None

    # Joining

    async def _take_part(self) -> None:
        self._rejoin.clear()
        await self._resolve_pattern()
        await self._prepare()
        self._rejoin.clear()
        if await self._join_and_sync():
            self._rounds = 0
            await self._rejoin.wait()
        else:
            self._rounds += 1
            await asyncio.sleep(self._backoff.seconds(self._rounds - _FAST_ROUNDS))

    async def _prepare(self) -> None:
        """Give up the partitions that the member can't keep. Heartbeats continue meanwhile, since the coordinator waits
        for all members."""
        owned = self._owned
        if self._is_cooperative:
            owned = [partition for partition in owned if partition.topic not in self._subscription.topics]
        if owned:
            await self._handoff.carry_out(Change.REVOKED, owned)
        await self._give_up_if_lost()

    async def _join_and_sync(self) -> bool:
        """Join the group, and return True once the member has an assignment. After False it has to join again."""
        self._beats = False
        joined = await self._ask_long(ApiKey.JOIN_GROUP, self._join_body())
        code = joined.error_code
        if code == ErrorCode.member_id_required:
            self._member_id = joined.member_id
            return False
        if code != ErrorCode.none:
            self._refused(code)
            return False
        self._member_id, self._generation = joined.member_id, joined.generation_id
        self._led = None
        assignments: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            assignments = await self._assign(joined)
        body = {
            "group_id": self.group_id,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": self._settings.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": joined.protocol_name,
            "assignments": assignments,
        }
        synced = await self._ask_long(ApiKey.SYNC_GROUP, body)
        if synced.error_code != ErrorCode.none:
            self._refused(synced.error_code)
            return False
        self._beats = True
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        return await self._take(list(decode_assignment(synced.assignment).partitions))

    async def _take(self, assigned: list[TopicPartition]) -> bool:
        owned = set(self._owned)
        self._last, self._last_generation = assigned, self._generation
        revoked = owned - set(assigned)
        if revoked:
            await self._handoff.carry_out(Change.REVOKED, revoked)
        await self._handoff.carry_out(Change.ASSIGNED, set(assigned) - owned)
        # Other members can get the revoked partitions only in another rebalance, so start one.
        return not revoked

    def _join_body(self) -> dict[str, Any]:
        owned = self._owned if self._is_cooperative else []
        topics = tuple(sorted(self._subscription.topics))
        protocols = []
        for assignor in self._assignors:
            user_data = assignor.user_data(self._last, self._last_generation)
            mine = MemberSubscription(topics, user_data, tuple(owned), self._last_generation, self._rack())
            protocols.append({"name": assignor.name, "metadata": encode_subscription(mine)})
        return {
            "group_id": self.group_id,
            "session_timeout": self._settings.session_timeout_ms,
            "rebalance_timeout": self._settings.max_poll_interval_ms,
            "member_id": self._member_id,
            "group_instance_id": self._settings.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": protocols,
            "reason": None,
        }

    def _rack(self) -> str | None:
        return self._settings.client_rack or None

    async def _assign(self, joined: Any) -> list[dict[str, Any]]:
        """Assign the partitions of all topics to the members. Called if this member leads the group."""
        members = [
            Member(each.member_id, decode_subscription(each.metadata), each.group_instance_id)
            for each in joined.members
        ]
        topics = {topic for member in members for topic in member.subscription.topics}
        metadata = await self._cluster.refresh(topics)
        counts = self._counts(metadata, topics)
        if getattr(joined, "skip_assignment", False):
            self._led = counts  # this static leader came back, and the group keeps its assignment
            return []
        assignor = next(each for each in self._assignors if each.name == joined.protocol_name)
        assigned = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
        self._led = counts
        return [
            {"member_id": member_id, "assignment": encode_assignment(MemberAssignment(tuple(partitions)))}
            for member_id, partitions in assigned.items()
        ]

    @staticmethod
    def _counts(metadata: MetadataSnapshot, topics: Any) -> dict[str, int]:
        """Return the number of partitions of each topic, 0 if a topic is missing."""
        known = metadata.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    def _refused(self, code: ErrorCode) -> None:
        """Handle an error code: return if the member can join again at once, and raise the error otherwise."""
        if code in _OUT:
            self._forget_membership(keeps_id=code == ErrorCode.illegal_generation)
            return
        if code in _COORDINATOR:
            self._cluster.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
        elif code == ErrorCode.rebalance_in_progress:
            return
        elif code == ErrorCode.fenced_instance_id:
            self._forget_membership()
        raise error_of(code, about=f"group {self.group_id!r}")

    def _forget_membership(self, *, keeps_id: bool = False) -> None:
        """Forget the membership, because the group did. Other members may own the partitions already."""
        self._beats = False
        self._is_lost = True
        self._generation = NO_GENERATION
        if not keeps_id:
            self._member_id = ""
        self._rejoin.set()

    async def _ask_long(self, api: ApiKey, body: dict[str, Any]) -> Any:
        """Send a request that the coordinator answers once all members are there, after a rebalance timeout at most."""
        try:
            node = await self._cluster.coordinator(CoordinatorKind.GROUP, self.group_id)
            connection = await self._cluster.connection(node, Purpose.COORDINATOR)
            version = connection.version_of(api)
            timeout = (
                max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms) / 1000 + _EXTRA_SECONDS
            )
            request = encode_request(api, version, body)
            return decode_response(api, version, await connection.exchange(api, version, [request], timeout=timeout))
        except (BrokerUnreachableError, RequestTimeoutError):
            self._cluster.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
            raise

    # Staying

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            try:
                if not self._beats:
                    continue
                if self._handoff.is_late():
                    await self._go_away()
                else:
                    await self._beat_once()
            except ClientError as error:
                logger.debug("heartbeat to group %s: %s", self.group_id, error)

    async def _beat_once(self) -> None:
        generation = self._generation
        body = {
            "group_id": self.group_id,
            "generation_id": generation,
            "member_id": self._member_id,
            "group_instance_id": self._settings.group_instance_id,
        }
        response = await self._ask(ApiKey.HEARTBEAT, body, timeout=self._settings.session_timeout_ms / 1000)
        code = response.error_code
        if code == ErrorCode.none or generation != self._generation or not self._beats:
            return
        if code == ErrorCode.rebalance_in_progress:
            self._rejoin.set()
        elif code in _OUT or code == ErrorCode.fenced_instance_id:
            self._forget_membership(keeps_id=code == ErrorCode.illegal_generation)
            if code == ErrorCode.fenced_instance_id:
                self._handoff.fail(error_of(code, about=f"group {self.group_id!r}"))
        else:
            logger.warning("group %s: a heartbeat failed with %s", self.group_id, code.name)

    async def _go_away(self) -> None:
        await super()._go_away()
        self._rejoin.set()

    async def _leave(self) -> None:
        """Leave the group. A static member stays until its session ends, because it may return before that."""
        member_id, self._member_id = self._member_id, ""
        self._generation = NO_GENERATION
        self._beats = False
        if not member_id or self._settings.group_instance_id is not None:
            return
        member = {"member_id": member_id, "group_instance_id": None, "reason": None}
        body = {"group_id": self.group_id, "member_id": member_id, "members": [member]}
        # Not on the connection on which a JoinGroup may be waiting, because responses come in the order of requests.
        node = await self._cluster.coordinator(CoordinatorKind.GROUP, self.group_id, timeout=_EXTRA_SECONDS)
        await self._cluster.request(node, ApiKey.LEAVE_GROUP, body, timeout=_EXTRA_SECONDS)
