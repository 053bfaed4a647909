"""Base of both group protocols: a task on the I/O thread that keeps the consumer in its group."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.commits import CommittingMember
from stratalog.client.consumer_settings import ConsumerSettings
from stratalog.client.groups.handoff import Change, Handoff
from stratalog.client.metadata import MetadataSnapshot, TopicPartition
from stratalog.client.subscription import Subscription
from stratalog.errors import ClientError
from stratalog.protocol.api_keys import ApiKey

logger = logging.getLogger(__name__)
LEAVE_SECONDS = 5.0
_MISSING_TOPICS_SECONDS = 1.0


class Membership(ABC):
    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, subscription: Subscription, handoff: Handoff
    ) -> None:
        assert settings.group_id is not None
        self.group_id = settings.group_id
        self._cluster = cluster
        self._settings = settings
        self._subscription = subscription
        self._handoff = handoff
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._missing_timer: asyncio.TimerHandle | None = None
        self._is_lost = False  # the group has given the partitions to other members
        self.is_away = False  # it left the group because the application did not poll
        cluster.on_change(self._on_metadata)

    @property
    @abstractmethod
    def identity(self) -> CommittingMember:
        """Return the member's identity for commits."""

    @abstractmethod
    async def _take_part(self) -> None:
        """Join, and return when the member has to act again. Retriable errors are retried, others go to the user."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tell the coordinator, and end the membership. An error does no harm, because the session ends anyway."""

    def start(self) -> None:
        """Join the group, or continue if the subscription has changed or the application polls again."""
        self._cluster.track_topics(self._subscription.topics)
        self._cluster.tracks_all_topics = self._subscription.pattern is not None
        if self._subscription.pattern is not None:
            self._cluster.refresh_soon()
        self._woken.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def polled(self) -> None:
        """Let a member that left for lack of polls join again."""
        self._woken.set()

    async def stop(self) -> None:
        """Leave the group. The caller takes care of the partitions that were owned."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._leave()
        except (ClientError, TimeoutError) as error:
            logger.debug("can't leave group %s: %s", self.group_id, error)

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            try:
                await self._give_up_if_lost()
                self.is_away = False
                await self._take_part()
                failures = 0
            except ClientError as error:
                logger.debug("group %s: %s", self.group_id, error)
                if error.is_retriable:
                    failures += 1
                    await asyncio.sleep(self._backoff.seconds(failures))
                else:
                    self._handoff.fail(error)
                    await self._woken.wait()
            except Exception as error:  # a bug, which the user must hear of
                logger.exception("membership of group %s", self.group_id)
                self._handoff.fail(ClientError(f"the membership of group {self.group_id!r} failed: {error!r}"))
                await self._woken.wait()
            if self.is_away:
                await self._woken.wait()

    async def _give_up_if_lost(self) -> None:
        if self._is_lost:
            self._is_lost = False
            if self._subscription.partitions:
                await self._handoff.carry_out(Change.LOST, self._subscription.partitions)

    async def _go_away(self) -> None:
        """Leave the group because the application does not poll, so that other members get the partitions."""
        logger.warning(
            "leaving group %s, because the application did not poll for max.poll.interval.ms (%d); fetch fewer records "
            "per poll (max.poll.records), or raise max.poll.interval.ms",
            self.group_id,
            self._settings.max_poll_interval_ms,
        )
        self._is_lost = self.is_away = True
        self._woken.clear()
        self._handoff.abandon()
        try:
            await self._leave()
        except ClientError as error:
            logger.debug("can't leave group %s: %s", self.group_id, error)

    @property
    def _owned(self) -> list[TopicPartition]:
        return sorted(self._subscription.partitions)

    async def _ask(self, api: ApiKey, body: dict[str, Any], *, timeout: float, lowest: int = 0) -> Any:
        return await self._cluster.ask_coordinator(
            CoordinatorKind.GROUP, self.group_id, api, body, lowest=lowest, timeout=timeout
        )

    async def _resolve_pattern(self) -> None:
        """Set the topics to those that match the pattern now, if there is one."""
        if self._subscription.pattern is not None:
            self._subscription.topics = self._matching(await self._cluster.refresh(all_topics=True))

    def _matching(self, metadata: MetadataSnapshot) -> frozenset[str]:
        return frozenset(
            name
            for name, info in metadata.topics.items()
            if self._subscription.matches(name)
            and not info.error_code
            and not (info.is_internal and self._settings.exclude_internal_topics)
        )

    def _on_metadata(self, metadata: MetadataSnapshot) -> None:
        self._schedule_refresh_for_missing(metadata)
        if self._subscription.pattern is None or not self._cluster.tracks_all_topics:
            return
        if self._matching(metadata) != self._subscription.topics:
            self._on_topics_changed()

    def _schedule_refresh_for_missing(self, metadata: MetadataSnapshot) -> None:
        """Refresh the metadata again if a subscribed topic is missing: it may be created at any time."""
        if self._missing_timer is not None:
            self._missing_timer.cancel()
            self._missing_timer = None
        known = metadata.topics
        if self._task is not None and any(
            topic not in known or known[topic].error_code for topic in self._subscription.topics
        ):
            loop = asyncio.get_running_loop()
            self._missing_timer = loop.call_later(_MISSING_TOPICS_SECONDS, self._cluster.refresh_soon)

    @abstractmethod
    def _on_topics_changed(self) -> None:
        """Act on a change of the topics that match the pattern."""


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics
