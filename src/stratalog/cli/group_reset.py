"""Moving a group: which partitions, from where to where, and committing that in its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.cli.bounds import AdminBounds
from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.partition_choice import parse_places
from stratalog.cli.program import CommandError, printable
from stratalog.cli.read_plan import Wanted
from stratalog.cli.tables import print_table
from stratalog.cli.wording import listed, plural
from stratalog.client.admin import Admin
from stratalog.client.errors import GroupNotFoundError
from stratalog.client.metadata import TopicPartition
from stratalog.errors import UnknownTopicError


@dataclass(frozen=True)
class Moves:
    group: str
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    is_dry_run: bool
    is_new: bool  # there was no such group

    def show(self, output: Output) -> None:
        places = sorted(self.after)
        if output.as_json:
            for place in places:
                fields = {"group": self.group, "topic": place.topic, "partition": place.partition}
                offsets = {"from_offset": self.before.get(place), "to_offset": self.after[place]}
                output.json({"type": "move", **fields, **offsets, "done": not self.is_dry_run})
            return
        word = "would go on at, without --dry-run" if self.is_dry_run else "goes on at"
        new = " (new group)" if self.is_new else ""
        output.line((printable(self.group), STRONG), (f"{new}  {word}", QUIET))
        rows = [(place.topic, str(place.partition), self.before.get(place), self.after[place]) for place in places]
        print_table(output, ("topic", "partition", "from", "to"), rows, "  ")


class GroupReset:
    def __init__(self, admin: Admin, group: str, topics: Sequence[str]) -> None:
        self._admin = admin
        self._group = group
        self._topics = topics

    def run(self, target: Wanted, *, dry_run: bool) -> Moves:
        is_new = not self._is_there_and_stopped()
        before = {place: one.offset for place, one in self._admin.list_group_offsets(self._group).items()}
        places = self._places(before)
        after = {place: stretch.start for place, stretch in target.plan(AdminBounds(self._admin), places).items()}
        if not dry_run:
            self._admin.alter_group_offsets(self._group, after).check()
        return Moves(self._group, before, after, dry_run, is_new)

    def _is_there_and_stopped(self) -> bool:
        try:
            members = self._admin.describe_group(self._group).members
        except GroupNotFoundError:
            return False  # it begins with what it is given
        if members:
            clients = listed(sorted({f"{member.client_id} at {member.host}" for member in members}))
            raise CommandError(
                f"group {self._group!r} has {plural(len(members), 'member')} ({clients}), who would not notice; stop "
                "what reads in its name first"
            )
        return True

    def _places(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        if not self._topics:
            if not committed:
                raise CommandError(
                    f"group {self._group!r} has committed nothing; check the name (`stratalog group list`), or say "
                    "with --topic where it is to begin"
                )
            return self._all_partitions(committed)
        places: list[TopicPartition] = []
        for text in self._topics:
            places += parse_places(self._admin, "--topic", text)
        return sorted(set(places))

    def _all_partitions(self, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Of the topics in which the group has committed: one without a committed offset would be left behind. Topics
        that are deleted have none to go on in."""
        topics = self._admin.describe_topics(sorted({place.topic for place in committed}))
        for error in topics.errors.values():
            if not isinstance(error, UnknownTopicError):
                raise error
        if not topics.succeeded():
            raise CommandError(
                f"the topics in which group {self._group!r} has committed do not exist any more; say with --topic "
                "where it is to go on"
            )
        return sorted(
            TopicPartition(name, one.partition) for name, info in topics.succeeded().items() for one in info.partitions
        )
