"""stratalog delete-records: delete the oldest records of partitions, up to an offset or a time."""

from __future__ import annotations

from typing import Annotated

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import (
    AsJson,
    BrokerAddress,
    CommandGroup,
    DryRun,
    Yes,
    argument,
    confirm_deletion,
    option,
    report_errors,
)
from stratalog.cli.output import Columns, Output, text
from stratalog.cli.positions import AdminBounds, ReadPositions, parse_partitions
from stratalog.cli.program import CommandError
from stratalog.cli.wording import join_first, pluralize
from stratalog.client.metadata import TopicPartition

app = CommandGroup()


@app.add("delete-records")
def delete_records(
    topic: Annotated[
        str,
        argument(
            "TOPIC[:PARTITION]", "The topic or partitions, like orders:0 or orders:0,3.", autocompletion=complete_topic
        ),
    ],
    server: BrokerAddress,
    before: Annotated[
        str | None, option("--before --before-offset", "OFFSET", "Delete all records before this offset.")
    ] = None,
    before_time: Annotated[
        str | None, option("--before-time", "TIME", "Delete all records before the first one that is not older.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest records of a topic, or of some of its partitions.

    Deletes all records before the offset, or before the first record that is not older than the time. This can't be
    undone, so the command asks first, unless --yes is given. Offsets: 42, -10 (ten before the end of each partition),
    end. Times: 2026-01-31T12:00:00Z, -1h (or s, m, d), milliseconds since 1970.

    \b
    Examples:
      stratalog delete-records orders:0 --before 1000
      stratalog delete-records orders:0,3 --before end --dry-run
      stratalog delete-records orders --before-time -7d --yes
    """
    if (before is None) == (before_time is None):
        raise CommandError("the command needs to know what to delete: give --before or --before-time, one of them")
    positions = ReadPositions.parse(before, before_time, start_option="--before")
    with server.admin() as admin:
        bounds = AdminBounds(admin)
        partitions = parse_partitions(admin, "TOPIC", topic)
        targets = {key: offsets.start for key, offsets in positions.resolve(bounds, partitions).items()}
        starts = dict(bounds.beginning_offsets(partitions))
        changes = {key: offset for key, offset in targets.items() if offset > starts[key]}
        if changes and not dry_run and not yes:
            _confirm(starts, changes)
        outcomes = admin.delete_records(changes) if changes and not dry_run else None
    new_starts = changes if outcomes is None else outcomes.succeeded()
    rows = [
        {
            "type": "deletion",
            "topic": key.topic,
            "partition": key.partition,
            "from_offset": starts[key],
            "to_offset": new_starts[key],
            "done": not dry_run,
        }
        for key in changes
        if key in new_starts
    ]
    columns: Columns = {
        "topic": "topic",
        "partition": text("partition"),
        "start was": "from_offset",
        "start would be" if dry_run else "start is": "to_offset",
        "records": lambda row: changes[TopicPartition(row["topic"], row["partition"])] - row["from_offset"],
    }
    empty = "" if changes else "no records to delete: the partitions start there, or later"
    Output(as_json=as_json).rows(rows, columns, empty=empty)
    if outcomes is not None:
        report_errors(outcomes.errors.values())


def _confirm(starts: dict[TopicPartition, int], changes: dict[TopicPartition, int]) -> None:
    """Ask whether to delete. After compaction there may be fewer records than offsets."""
    records = sum(offset - starts[key] for key, offset in changes.items())
    ranges = join_first([f"{key} before offset {offset:,}" for key, offset in changes.items()])
    confirm_deletion(f"Delete up to {pluralize(records, 'record')} of {ranges}?")
