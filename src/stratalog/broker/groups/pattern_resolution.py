"""Resolves the patterns of KIP-848 groups: finds the topics that they match, in the background.

As in Kafka, a heartbeat never matches a pattern. It uses the topics of the last resolution, and starts a new one if the
member's pattern is new, or if topics have changed since. A group has one resolution at a time. It matches all patterns
that are due, each of them once for each version of the topics. The matches are written and raise the group epoch;
members get their partitions with later heartbeats.

Topics may change during a resolution. It uses the names with which it began, so that it ends. Its result applies until
the next resolution, which follows at once. The result for a group that was removed in the meantime is dropped.
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
_MOST_NAMES = 1_000  # in the records of one batch; a pattern that matches more gets a batch of its own

Resolved = Mapping[str, tuple[str, ...]]
"""Topics by pattern."""


class TopicNames:
    """The names of the existing topics. They are read on demand, once for each version."""

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
        """Return the characters of all names, and one more for each name."""
        return self._current()[2]

    def _current(self) -> tuple[int, Sequence[str], int]:
        if self._read is None or self._read[0] != self.version:
            names = tuple(topic.name for topic in self._topics.all())
            self._read = self.version, names, sum(map(len, names)) + len(names)
        return self._read


class PatternResolver:
    """The resolutions of all groups. `is_served` returns whether a group still exists and the broker is not stopping.
    `write` appends the topics of patterns and applies them; it raises GroupRefusedError."""

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

    def resolve_if_due(self, group: ConsumerGroup, member_id: str) -> None:
        """Start a resolution if the member's pattern is due, and none is running. Call this after a heartbeat."""
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
                matches: dict[str, tuple[str, ...] | None] = {}
                for regex in due:
                    matches[regex] = await self._match(group.group_id, regex, names)
                    if not self._is_served(group):
                        return
                for batch in _in_batches(matches, group.resolved):
                    self._write(group, batch)
                    await asyncio.sleep(0)  # lets the event loop serve other requests
                    if not self._is_served(group):
                        return
                seen = {**group.patterns_seen, **dict.fromkeys(matches, version)}
                group.patterns_seen = {regex: seen[regex] for regex in group.regexes() & seen.keys()}
        except GroupRefusedError as error:
            is_refused = True
            _log.warning("group %s: the topics that its patterns match were not written: %s", group.group_id, error)
            self._host.call_later(_RETRY_S, lambda: self._end(group))  # after that a heartbeat starts a new resolution
        finally:
            if not is_refused:
                self._end(group)

    def _end(self, group: ConsumerGroup) -> None:
        if self._running.get(group.group_id) is group:
            del self._running[group.group_id]

    async def _match(self, group_id: str, regex: str, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return the topics that a pattern matches. Return None if it keeps those of the last resolution, because
        matching takes too long."""
        try:
            return await self._match_in_background(lambda: compile_pattern(regex).matching(names))
        except TopicPatternError as error:
            _log.warning("group %s: pattern %r keeps its earlier topics: %s", group_id, regex, error)
            return None


def _in_batches(matches: Mapping[str, tuple[str, ...] | None], before: Resolved) -> Iterator[Resolved]:
    """Yield the changed patterns in portions, so that no batch of records has all topics of all patterns."""
    batch: dict[str, tuple[str, ...]] = {}
    count = 0
    for regex, topics in matches.items():
        matched = before.get(regex, ()) if topics is None else topics
        if before.get(regex) == matched:
            continue
        if batch and count + len(matched) > _MOST_NAMES:
            yield batch
            batch, count = {}, 0
        batch[regex] = matched
        count += len(matched) + 1
    if batch:
        yield batch
