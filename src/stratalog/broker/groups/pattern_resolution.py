"""Finds out in the background which topics the patterns of a KIP-848 group match.

As in Kafka, a heartbeat never matches a pattern. It goes on with the topics that were matched before, and starts a
resolution if its member's pattern is new, or if topics have changed since. A group has one resolution at a time, which
matches all patterns that are due, each of them once for a version of the topics. The topics that it found are written
and raise the group's epoch; members get their partitions with later heartbeats.

Topics may change during a resolution. It ends with the names that it began with, so that it ends at all, and what it
found counts until the next one, which follows at once. A result for a group that went meanwhile is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from stratalog.broker.background import RunInBackground
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics
from stratalog.broker.groups.consumer_requests import GroupRefusedError
from stratalog.broker.groups.group import GroupHost
from stratalog.broker.groups.topic_pattern import TopicPatternError, compile_pattern

_log = logging.getLogger(__name__)

_RETRY_S = 5.0
_MOST_NAMES = 1_000  # in the records of one batch, but for a pattern that matches more

Resolved = Mapping[str, tuple[str, ...]]
"""Topics by pattern."""


class TopicNames:
    """The names of the topics that exist. They are read when they are needed, once for a version."""

    def __init__(self, topics: GroupTopics) -> None:
        self.version = 0
        self._topics = topics
        self._read: tuple[int, Sequence[str], int] | None = None

    def changed(self) -> None:
        self.version += 1

    @property
    def names(self) -> Sequence[str]:
        return self._current()[1]

    def characters(self) -> int:
        """Of all names and their ends."""
        return self._current()[2]

    def _current(self) -> tuple[int, Sequence[str], int]:
        if self._read is None or self._read[0] != self.version:
            names = tuple(topic.name for topic in self._topics.all())
            self._read = self.version, names, sum(map(len, names)) + len(names)
        return self._read


class PatternResolver:
    """`is_served` says whether a group still exists and the broker goes on. `write` makes topics of patterns durable
    and shows them; it raises GroupRefusedError."""

    def __init__(
        self,
        host: GroupHost,
        topic_names: TopicNames,
        match_in_background: RunInBackground,
        is_served: Callable[[ConsumerGroup], bool],
        write: Callable[[ConsumerGroup, Resolved], None],
    ) -> None:
        self._host = host
        self._topic_names = topic_names
        self._match_in_background = match_in_background
        self._is_served = is_served
        self._write = write
        self._running: dict[str, ConsumerGroup] = {}

    def look_at(self, group: ConsumerGroup, member_id: str) -> None:
        """After a heartbeat of the member: start a resolution if its pattern is due, and none is under way."""
        regex = group.members[member_id].subscribed_topic_regex
        if regex and self._is_due(group, regex) and self._running.get(group.group_id) is not group:
            self._running[group.group_id] = group
            self._host.start_task(self._resolve(group))

    def _is_due(self, group: ConsumerGroup, regex: str) -> bool:
        return regex not in group.resolved or group.patterns_seen.get(regex) != self._topic_names.version

    async def _resolve(self, group: ConsumerGroup) -> None:
        is_refused = False
        try:
            while due := sorted(regex for regex in group.regexes() if self._is_due(group, regex)):
                version, names = self._topic_names.version, self._topic_names.names
                found: dict[str, tuple[str, ...] | None] = {}
                for regex in due:
                    found[regex] = await self._match(group.group_id, regex, names)
                    if not self._is_served(group):
                        return
                for some in _in_batches(found, group.resolved):
                    self._write(group, some)
                    await asyncio.sleep(0)  # others are served meanwhile
                    if not self._is_served(group):
                        return
                seen = {**group.patterns_seen, **dict.fromkeys(found, version)}
                group.patterns_seen = {regex: seen[regex] for regex in group.regexes() & seen.keys()}
        except GroupRefusedError as error:
            is_refused = True
            _log.warning("group %s: topics that its patterns match are not written: %s", group.group_id, error)
            self._host.call_later(_RETRY_S, lambda: self._end(group))  # then the next heartbeat starts anew
        finally:
            if not is_refused:
                self._end(group)

    def _end(self, group: ConsumerGroup) -> None:
        if self._running.get(group.group_id) is group:
            del self._running[group.group_id]

    async def _match(self, group_id: str, regex: str, names: Sequence[str]) -> tuple[str, ...] | None:
        """None: it keeps the topics that it matched before."""
        try:
            return await self._match_in_background(lambda: compile_pattern(regex).matching(names))
        except TopicPatternError as error:
            _log.warning("group %s: %r keeps the topics it matched before: %s", group_id, regex, error)
            return None


def _in_batches(found: Mapping[str, tuple[str, ...] | None], before: Resolved) -> Iterator[Resolved]:
    """What has changed, so that not all topics of all patterns are in one batch of records."""
    some: dict[str, tuple[str, ...]] = {}
    count = 0
    for regex, topics in found.items():
        matched = before.get(regex, ()) if topics is None else topics
        if before.get(regex) == matched:
            continue
        if some and count + len(matched) > _MOST_NAMES:
            yield some
            some, count = {}, 0
        some[regex] = matched
        count += len(matched) + 1
    if some:
        yield some
