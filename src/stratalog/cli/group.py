"""stratalog group: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

from stratalog.cli.broker_names import complete_group, complete_topic, nearest
from stratalog.cli.options import AsJson, BrokerAddress, CommandGroup, DryRun, argument, flag, option, report_errors
from stratalog.cli.output import QUIET, STRONG, Columns, Output, Row, text
from stratalog.cli.positions import AdminBounds, ReadPositions, parse_partitions
from stratalog.cli.program import CommandError
from stratalog.cli.wording import join_first, pluralize, printable
from stratalog.client.admin import Admin, GroupDescription, OffsetSpec
from stratalog.client.errors import GroupNotFoundError
from stratalog.client.metadata import TopicPartition
from stratalog.errors import UnknownTopicError

_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead", "Assigning", "Reconciling")
Names: TypeAlias = Annotated[list[str], argument("GROUP...", "Names of groups.", autocompletion=complete_group)]

app = CommandGroup("""List consumer groups, show their lag, reset and delete them.

\b
Examples:
  stratalog group list
  stratalog group describe billing
  stratalog group reset billing --topic orders --to-time -1h --dry-run
""")


@app.add("list")
def list_groups(
    server: BrokerAddress,
    states: Annotated[
        list[str] | None, option("--state", "STATE", "Only groups in this state: Stable, Empty, ... Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the groups.

    \b
    Examples:
      stratalog group list
      stratalog group list --state Empty --json
    """
    names = {state.lower(): state for state in _STATES}
    states = [names.get(state.lower(), state) for state in states or ()]  # a newer broker may have states of its own
    with server.admin() as admin:
        groups = admin.list_groups(states=states)
        empty = "no groups yet; a group appears with its first consumer"
        if states and not groups:
            unknown = [state for state in states if state not in _STATES]
            if unknown:
                raise CommandError(f"no group is in state {unknown[0]!r}; the states are {', '.join(_STATES)}")
            if others := len(admin.list_groups()):
                shown = " or ".join(map(repr, states))
                empty = f"no group is in state {shown}; `stratalog group list` shows all {others:,}"
    rows = [
        {
            "type": "group",
            "group": group.name,
            "state": group.state,
            "group_type": group.type,
            "protocol_type": group.protocol_type,
        }
        for group in groups
    ]
    columns: Columns = {"group": "group", "type": lambda row: row["group_type"] or None, "state": "state"}
    Output(as_json=as_json).rows(rows, columns, empty=empty)


@app.add("describe")
def describe(groups: Names, server: BrokerAddress, as_json: AsJson = False) -> None:
    """Show committed offsets, lag and members.

    All partitions of the topics that a group reads, or has committed in, are shown. Without a committed offset (-), the
    lag counts from the start of the log, which is what a consumer with auto.offset.reset=earliest has to read. The
    broker does not know that setting of the group's consumers.

    \b
    Examples:
      stratalog group describe billing
      stratalog group describe billing --json
    """
    output = Output(as_json=as_json)
    with server.admin() as admin:
        outcomes = admin.describe_groups(groups)
        for group in outcomes.succeeded().values():
            description = _describe(admin, group)
            if as_json:
                output.json(description)
            else:
                _show(output, description)
    report_errors(outcomes.errors.values())


@app.add("reset")
def reset(
    group: Annotated[str, argument("GROUP", "The name of the group.", autocompletion=complete_group)],
    server: BrokerAddress,
    topics: Annotated[
        list[str] | None,
        option(
            "--topic -t",
            "TOPIC[:PARTITIONS]",
            "Only this topic, or some partitions, like orders:0,3. Repeatable.",
            autocompletion=complete_topic,
        ),
    ] = None,
    to_offset: Annotated[str | None, option("--to-offset", "OFFSET", "Continue at this offset.")] = None,
    to_time: Annotated[
        str | None, option("--to-time", "TIME", "Continue with the first record that is not older.")
    ] = None,
    to_beginning: Annotated[bool, flag("--to-beginning", "Continue with the first record.")] = False,
    to_end: Annotated[bool, flag("--to-end", "Continue after the last record.")] = False,
    create: Annotated[bool, flag("--create", "Create the group if it does not exist.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set the offsets at which a group continues.

    Changes all topics in which the group has committed, or those of --topic. The group's consumers must be stopped. A
    group that does not exist is only created with --create, because its name may be a mistake. Offsets: 42, or -10 for
    ten before the end of each partition; an offset that a partition lacks becomes the nearest. Times:
    2026-01-31T12:00:00Z, -1h (or s, m, d), milliseconds since 1970.

    \b
    Examples:
      stratalog group reset billing --to-beginning --dry-run
      stratalog group reset billing --topic orders --to-time 2026-01-31T12:00:00Z
      stratalog group reset billing --topic orders:0,3 --to-offset 1000
      stratalog group reset billing --to-end
      stratalog group reset shipping --topic orders --to-end --create
    """
    if (to_offset is not None) + (to_time is not None) + to_beginning + to_end != 1:
        raise CommandError("give one of --to-offset, --to-time, --to-beginning and --to-end")
    edge = "beginning" if to_beginning else "end" if to_end else to_offset
    target = ReadPositions.parse(edge, to_time, start_option="--to")
    with server.admin() as admin:
        is_new = not _exists_without_members(admin, group)
        if is_new and not create:
            raise CommandError(_missing_group(admin, group))
        before = {partition: committed.offset for partition, committed in admin.list_group_offsets(group).items()}
        partitions = _partitions_to_reset(admin, group, topics or (), before)
        after = {
            partition: offsets.start for partition, offsets in target.resolve(AdminBounds(admin), partitions).items()
        }
        if not dry_run:
            admin.alter_group_offsets(group, after).check()
    rows = [
        {
            "type": "move",
            "group": group,
            "topic": partition.topic,
            "partition": partition.partition,
            "from_offset": before.get(partition),
            "to_offset": offset,
            "done": not dry_run,
        }
        for partition, offset in sorted(after.items())
    ]
    output = Output(as_json=as_json)
    if not as_json:
        new = " (new group)" if is_new else ""
        done = "would continue at, without --dry-run" if dry_run else "continues at"
        output.line((printable(group), STRONG), (f"{new}  {done}", QUIET))
    columns: Columns = {"topic": "topic", "partition": text("partition"), "from": "from_offset", "to": "to_offset"}
    output.rows(rows, columns, indent=2)


@app.add("delete")
def delete(groups: Names, server: BrokerAddress) -> None:
    """Delete groups and their committed offsets. Their consumers must be stopped.

    \b
    Examples:
      stratalog group delete billing
      stratalog group delete billing shipping
    """
    with server.admin() as admin:
        outcomes = admin.delete_groups(list(dict.fromkeys(groups)))
    for name in outcomes.succeeded():
        Output().line(f"deleted {printable(name)}")
    report_errors(outcomes.errors.values())


def _describe(admin: Admin, group: GroupDescription) -> Row:
    """Return all partitions of the topics in which the group has committed or reads."""
    committed = {partition: offset.offset for partition, offset in admin.list_group_offsets(group.name).items()}
    readers = {partition: member for member in group.members for partition in member.assignment}
    used = {*committed, *readers}
    topics = admin.describe_topics(sorted({partition.topic for partition in used})).succeeded() if used else {}
    existing = [TopicPartition(name, part.partition) for name, info in topics.items() for part in info.partitions]
    starts = _offsets(admin, existing, OffsetSpec.EARLIEST)  # deleted topics are in neither of the two
    ends = _offsets(admin, existing, OffsetSpec.LATEST)
    rows = []
    for partition in sorted({*used, *ends}):
        start, end = committed.get(partition, starts.get(partition)), ends.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": committed.get(partition),
                "start_offset": starts.get(partition),
                "end_offset": end,
                "lag": None if start is None or end is None else max(0, end - start),
                "member": readers[partition].id if partition in readers else None,
            }
        )
    coordinator = group.coordinator
    return {
        "type": "group",
        "group": group.name,
        "state": group.state,
        "group_type": group.type,
        "assignor": group.assignor,
        "coordinator": {"id": coordinator.id, "host": coordinator.host, "port": coordinator.port},
        "lag": sum(row["lag"] or 0 for row in rows),
        "partitions": rows,
        "members": [
            {
                "member": member.id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [[partition.topic, partition.partition] for partition in member.assignment],
            }
            for member in group.members
        ],
    }


def _show(output: Output, group: Row) -> None:
    about = [group["state"], group["group_type"], *([group["assignor"]] if group["assignor"] else [])]
    about += [pluralize(len(group["members"]), "member"), f"lag {group['lag']:,}"]
    coordinator = "coordinator {id} at {host}:{port}".format_map(group["coordinator"])
    output.line((printable(group["group"]), STRONG), (f"  {', '.join(about)}, {coordinator}", QUIET))
    members = {member["member"]: member for member in group["members"]}
    columns: Columns = {
        "topic": "topic",
        "partition": text("partition"),
        "committed": "committed_offset",
        "end": "end_offset",
        "lag": "lag",
        "client": lambda row: members[row["member"]]["client"] if row["member"] else None,
        "host": lambda row: members[row["member"]]["host"] if row["member"] else None,
        "member": "member",
    }
    rows = group["partitions"]
    output.rows(
        rows, columns, indent=2, clip=True, empty="  the group has no committed offset and no assigned partition"
    )
    if any(row["committed_offset"] is None and row["end_offset"] is not None for row in rows):
        output.line(("  without a committed offset (-), the lag counts from the start of the log", QUIET))
    idle = [printable(member["member"]) for member in group["members"] if not member["partitions"]]
    if idle:
        output.line(f"  members without a partition: {', '.join(idle)}")


def _offsets(admin: Admin, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    results = admin.list_offsets(dict.fromkeys(partitions, spec)).succeeded()
    return {partition: result.offset for partition, result in results.items()}


def _exists_without_members(admin: Admin, group: str) -> bool:
    """Return whether the group exists. Raise if it has members, which would not notice that their offsets change."""
    try:
        members = admin.describe_group(group).members
    except GroupNotFoundError:
        return False
    if members:
        clients = join_first(sorted({f"{member.client_id} at {member.host}" for member in members}))
        raise CommandError(
            f"group {group!r} has {pluralize(len(members), 'member')} ({clients}), which would not notice the reset; "
            "stop the group's consumers first"
        )
    return True


def _missing_group(admin: Admin, group: str) -> str:
    similar = nearest(group, (existing.name for existing in admin.list_groups()))
    suggestion = "" if similar is None else f"did you mean {similar!r}? "
    advice = "`stratalog group list` shows all groups, and --create creates this one"
    return f"group {group!r} does not exist; {suggestion}{advice}"


def _partitions_to_reset(
    admin: Admin, group: str, topics: Sequence[str], committed: Mapping[TopicPartition, int]
) -> Iterable[TopicPartition]:
    """Return the partitions of `topics`, by default of all topics in which the group has committed. Those are all their
    partitions, because a group that has committed in one partition may still have to read the others."""
    if topics:
        return sorted({partition for topic in topics for partition in parse_partitions(admin, "--topic", topic)})
    if not committed:
        raise CommandError(
            f"group {group!r} has no committed offsets; check the name (`stratalog group list`), or name the topics to "
            "begin with: --topic"
        )
    outcomes = admin.describe_topics(sorted({partition.topic for partition in committed}))
    for error in outcomes.errors.values():
        if not isinstance(error, UnknownTopicError):
            raise error
    if not outcomes.succeeded():
        raise CommandError(
            f"the topics in which group {group!r} has committed do not exist any more; name the topics to continue "
            "with: --topic"
        )
    return sorted(
        TopicPartition(name, part.partition) for name, info in outcomes.succeeded().items() for part in info.partitions
    )
