"""Where partitions begin and end, and which record is first at a time, as an Admin finds it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import OffsetAndTimestamp


class AdminBounds:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def beginning_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return self._listed(places, OffsetSpec.EARLIEST)

    def end_offsets(self, places: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        return self._listed(places, OffsetSpec.LATEST)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], /
    ) -> Mapping[TopicPartition, OffsetAndTimestamp | None]:
        outcomes = self._admin.list_offsets(times)
        outcomes.check()
        return {
            place: OffsetAndTimestamp(found.offset, found.timestamp) if found.offset >= 0 else None
            for place, found in outcomes.items()
        }

    def _listed(self, places: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        outcomes = self._admin.list_offsets(dict.fromkeys(places, spec))
        outcomes.check()
        return {place: found.offset for place, found in outcomes.items()}
