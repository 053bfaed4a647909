"""The memory of committed and pending offsets is counted when they are added, and subtracted exactly when they go."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey
from stratalog.broker.groups.offsets import OffsetChange, Offsets

KEYS = st.builds(OffsetKey, st.sampled_from(("g", "h")), st.sampled_from(("a", "\u00fc")), st.integers(0, 2))
OFFSETS = st.builds(
    CommittedOffset, st.integers(0, 9), st.just(-1), st.sampled_from(("", "text", "\u00fcber")), st.just(1)
)
PRODUCERS = st.integers(1, 3)


def recounted(offsets: Offsets) -> int:
    """Return the memory that all existing offsets take, added up one by one."""
    fresh = Offsets(GroupConfig())
    for group_id, topics in offsets._groups.items():
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                fresh.apply([OffsetChange(OffsetKey(group_id, topic, partition), offset)])
    for producer_id, held in offsets.pending._producers.items():
        for key, written in held.items():
            fresh.pending.add(producer_id, [(key, None if written is None else written.offset)])
    return fresh.state_bytes


class OffsetsBytes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = Offsets(GroupConfig())

    @rule(key=KEYS, offset=OFFSETS | st.none())
    def commit_or_delete(self, key: OffsetKey, offset: CommittedOffset | None) -> None:
        before, change = self.offsets.state_bytes, OffsetChange(key, offset)
        most = 0 if offset is None else self.offsets.bytes_added([change])
        self.offsets.apply([change])
        assert self.offsets.state_bytes - before <= most

    @rule(producer=PRODUCERS, key=KEYS, offset=OFFSETS)
    def commit_in_transaction(self, producer: int, key: OffsetKey, offset: CommittedOffset) -> None:
        self.offsets.pending.add(producer, [(key, offset)])

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        self.offsets.end_transaction(producer, self.offsets.pending.keys(producer), commit=commit)

    @rule(group=st.sampled_from(("g", "h")))
    def delete_group(self, group: str) -> None:
        self.offsets.apply(self.offsets.delete_group(group))

    @invariant()
    def the_count_is_what_is_there(self) -> None:
        assert self.offsets.state_bytes == recounted(self.offsets)

    def teardown(self) -> None:
        for producer in (1, 2, 3):
            self.end(producer, True)
        for group in ("g", "h"):
            self.delete_group(group)
        assert self.offsets.state_bytes == 0


TestOffsetsBytes = OffsetsBytes.TestCase
TestOffsetsBytes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
