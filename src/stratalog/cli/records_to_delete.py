"""What `delete-records` is about to delete, what it asks before that, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.cli.output import QUIET, Output
from stratalog.cli.tables import print_table
from stratalog.cli.wording import listed, plural
from stratalog.client.metadata import TopicPartition


@dataclass(frozen=True)
class RecordsToDelete:
    starts: Mapping[TopicPartition, int]  # where the partitions begin
    begins: Mapping[TopicPartition, int]  # where they are to begin

    @property
    def count(self) -> int:
        """At most: after compaction there are fewer records than offsets."""
        return sum(self._count(place) for place in self.starts)

    def changes(self) -> dict[TopicPartition, int]:
        return {place: self.begins[place] for place in self.starts if self._count(place)}

    def question(self) -> str:
        where = listed([f"{place} before offset {offset:,}" for place, offset in self.changes().items()])
        return f"Delete up to {plural(self.count, 'record')} of {where}?"

    def show(self, output: Output, done: Mapping[TopicPartition, int], *, is_dry_run: bool) -> None:
        """`done`: where the partitions begin now, if anything was deleted."""
        changes = self.changes()
        if output.as_json:
            for place, offset in changes.items():
                if is_dry_run or place in done:
                    fields = {"topic": place.topic, "partition": place.partition, "from_offset": self.starts[place]}
                    to_offset = done.get(place, offset)
                    output.json({"type": "deletion", **fields, "to_offset": to_offset, "done": not is_dry_run})
            return
        if not changes:
            output.line(("no records to delete: the partitions begin there, or later", QUIET))
            return
        rows = [
            (place.topic, str(place.partition), self.starts[place], done.get(place, offset), self._count(place))
            for place, offset in changes.items()
            if is_dry_run or place in done
        ]
        if rows:
            columns = ("topic", "partition", "start was", "start would be" if is_dry_run else "start is", "records")
            print_table(output, columns, rows)

    def _count(self, place: TopicPartition) -> int:
        return max(0, self.begins[place] - self.starts[place])
