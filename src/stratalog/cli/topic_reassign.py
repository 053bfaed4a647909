"""stratalog topic reassign: plan moves of replicas, show them, carry them out, and stop them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import AsJson, BrokerAddress, argument, flag, option, report_errors
from stratalog.cli.output import QUIET, Columns, Output, Row, ids, size
from stratalog.cli.program import CommandError
from stratalog.cli.progress import ProgressDisplay, time_left
from stratalog.cli.reassignment_plan import Assignment, ImpossiblePlanError, balance, drain
from stratalog.cli.wording import format_size, pluralize
from stratalog.client.errors import ClientError
from stratalog.client.metadata import TopicInfo, TopicPartition

if TYPE_CHECKING:
    from stratalog.client.admin import Admin

_LOOK_SECONDS = 0.5
_GOES_ON = "the cluster continues with the moves; `stratalog topic reassign --cancel` stops them"


def reassign(
    server: BrokerAddress,
    topics: Annotated[
        list[str] | None, argument("[TOPIC...]", "Only these topics; by default all.", autocompletion=complete_topic)
    ] = None,
    brokers: Annotated[
        str | None, option("--brokers", "ID,ID,...", "Balance the replicas over these brokers, or over `all`.")
    ] = None,
    drained: Annotated[
        list[int] | None, option("--drain", "ID", "Move all replicas off this broker. Repeatable.")
    ] = None,
    execute: Annotated[bool, flag("--execute", "Move the replicas, instead of only showing the plan.")] = False,
    wait: Annotated[bool, flag("--wait/--no-wait", "Wait until all replicas have moved.")] = True,
    cancel: Annotated[bool, flag("--cancel", "Stop the moves that are running; the replicas stay as before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move replicas to other brokers.

    --brokers spreads replicas and leaders evenly over brokers and racks, with as few moves as possible. --drain empties
    a broker and leaves all others where they are. Both show the plan; --execute carries it out.

    \b
    Examples:
      stratalog topic reassign --brokers all
      stratalog topic reassign orders payments --brokers 1,2,3 --execute
      stratalog topic reassign --drain 2 --execute
      stratalog topic reassign --cancel
    """
    if sum((brokers is not None, bool(drained), cancel)) != 1:
        raise CommandError("give one of --brokers, --drain and --cancel; see stratalog topic reassign --help")
    if cancel and execute:
        raise CommandError("--cancel needs no --execute; leave it out")
    output = Output(as_json=as_json)
    with server.admin() as admin:
        chosen = _chosen(admin, topics)
        if cancel:
            _cancel(admin, output, chosen)
            return
        plan = _plan(admin, chosen, brokers, drained or [])
        sizes = _sizes(admin, {partition: chosen[partition] for partition in plan})
        rows = [_row(partition, chosen[partition], replicas, sizes) for partition, replicas in plan.items()]
        _show(output, rows, is_executed=execute)
        if not execute or not plan:
            return
        outcomes = admin.alter_partition_reassignments(plan)
        if wait:
            _wait(admin, plan, rows)
            moved = pluralize(len(outcomes.succeeded()), "partition")
            if not as_json:
                output.line(f"reassigned {moved}; `stratalog cluster elect --preferred` gives them their new leaders")
        elif not as_json:
            output.line(f"began to reassign {pluralize(len(outcomes.succeeded()), 'partition')}; {_GOES_ON}")
        report_errors(outcomes.errors.values())


def _chosen(admin: Admin, topics: list[str] | None) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of each partition, as they are when no reassignment is running."""
    described: Mapping[str, TopicInfo]
    if topics:
        described = admin.describe_topics(topics).check()
    else:
        described = admin.list_topics(include_internal=True)
    replicas = {
        TopicPartition(info.name, each.partition): each.replicas
        for info in described.values()
        for each in info.partitions
    }
    running = admin.list_partition_reassignments()
    for partition, reassignment in running.items():
        if partition in replicas:
            replicas[partition] = tuple(each for each in reassignment.replicas if each not in reassignment.removing)
    return replicas


def _plan(
    admin: Admin, chosen: Mapping[TopicPartition, tuple[int, ...]], brokers: str | None, drained: list[int]
) -> Assignment:
    racks = {node.id: node.rack for node in admin.describe_cluster().nodes}
    try:
        if brokers is None:
            known = set(racks).union(*chosen.values())
            _check_known("--drain", drained, known)
            return drain(chosen, racks, drained)
        targets = sorted(racks) if brokers.strip() == "all" else _parse_ids(brokers)
        _check_known("--brokers", targets, set(racks))
        return balance(chosen, {node_id: racks[node_id] for node_id in targets})
    except ImpossiblePlanError as error:
        raise CommandError(str(error)) from error


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise CommandError(f"--brokers is {text!r}; it must be broker ids like 1,2,3, or all")
    return sorted({int(part) for part in parts})


def _check_known(option_name: str, node_ids: Iterable[int], known: set[int]) -> None:
    for node_id in node_ids:
        if node_id not in known:
            names = ", ".join(map(str, sorted(known)))
            raise CommandError(f"{option_name} names broker {node_id}, which is not in the cluster; it has {names}")


def _sizes(admin: Admin, present: Assignment) -> dict[TopicPartition, int]:
    """Return the size of each partition's largest replica. Brokers that don't respond are left out."""
    sizes: dict[TopicPartition, int] = {}
    for (_, partition), replica_size in _replica_sizes(admin, present).items():
        sizes[partition] = max(sizes.get(partition, 0), replica_size)
    return sizes


def _replica_sizes(admin: Admin, replicas: Assignment) -> dict[tuple[int, TopicPartition], int]:
    """Return the sizes of replicas. Asks only the brokers that have some: others may be slow, or about to leave."""
    if not replicas:
        return {}
    try:
        alive = {node.id for node in admin.describe_cluster().nodes}
        node_ids = sorted(alive.intersection(each for brokers in replicas.values() for each in brokers))
        by_broker = admin.describe_log_dirs(node_ids, partitions=replicas).succeeded()
    except ClientError:
        return {}
    return {
        (broker, partition): replica.size
        for broker, directories in by_broker.items()
        for directory in directories.values()
        for partition, replica in directory.replicas.items()
        if not replica.is_future
    }


def _row(
    partition: TopicPartition, before: tuple[int, ...], after: tuple[int, ...], sizes: Mapping[TopicPartition, int]
) -> Row:
    adding = [replica for replica in after if replica not in before]
    known = sizes.get(partition)
    return {
        "type": "move",
        "topic": partition.topic,
        "partition": partition.partition,
        "replicas": list(before),
        "new_replicas": list(after),
        "adding": adding,
        "removing": [replica for replica in before if replica not in after],
        "bytes": None if known is None else known * len(adding),
    }


def _show(output: Output, rows: list[Row], *, is_executed: bool) -> None:
    columns: Columns = {
        "topic": "topic",
        "partition": lambda row: str(row["partition"]),
        "replicas": ids("replicas"),
        "new replicas": ids("new_replicas"),
        "to copy": size("bytes"),
    }
    output.rows(rows, columns, empty="nothing has to move")
    if rows and not output.as_json:
        copies = sum(len(row["adding"]) for row in rows)
        amount = format_size(sum(row["bytes"] or 0 for row in rows))
        advice = "" if is_executed else "; --execute does it"
        moves = f"{pluralize(len(rows), 'partition')}, {pluralize(copies, 'replica')} to copy, {amount}{advice}"
        output.line((moves, QUIET))


def _cancel(admin: Admin, output: Output, chosen: Iterable[TopicPartition]) -> None:
    partitions = set(chosen)
    running = [partition for partition in admin.list_partition_reassignments() if partition in partitions]
    if not running:
        if not output.as_json:
            output.line("no reassignment is running")
        return
    outcomes = admin.alter_partition_reassignments(dict.fromkeys(running))
    for partition in outcomes.succeeded():
        if output.as_json:
            output.json({"type": "cancelled", "topic": partition.topic, "partition": partition.partition})
        else:
            output.line(f"cancelled the reassignment of {partition}")
    report_errors(outcomes.errors.values())


def _wait(admin: Admin, plan: Assignment, rows: list[Row]) -> None:
    """Return when no partition of the plan is being reassigned."""
    copies = {
        (node_id, TopicPartition(row["topic"], row["partition"])): row["bytes"] // len(row["adding"])
        for row in rows
        for node_id in row["adding"]
        if row["bytes"]
    }
    adding = {TopicPartition(row["topic"], row["partition"]): tuple(row["adding"]) for row in rows if row["adding"]}
    try:
        with _MoveProgress(len(plan), sum(copies.values())) as progress:
            while running := admin.list_partition_reassignments(plan):
                if progress.wants_sizes:
                    present = _replica_sizes(admin, adding)
                    progress.copied = sum(
                        whole if copy[1] not in running else min(present.get(copy, 0), whole)
                        for copy, whole in copies.items()
                    )
                progress.moved(len(plan) - len(running))
                time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_GOES_ON) from None
    except ClientError as error:
        error.add_note(_GOES_ON)
        raise


class _MoveProgress(ProgressDisplay):
    """Shows how many partitions have moved, and how many bytes of them are copied."""

    def __init__(self, partitions: int, size: int) -> None:
        super().__init__()
        self.copied = 0
        self._partitions = partitions
        self._size = size
        self._moved = 0
        self.total = size or partitions

    @property
    def wants_sizes(self) -> bool:
        return self._size > 0

    def moved(self, count: int) -> None:
        self._moved = count
        self.update(self.copied if self._size else count)

    def describe(self) -> str:
        share = (self.copied / self._size) if self._size else self._moved / self._partitions
        parts = [f"moved {self._moved:,} of {pluralize(self._partitions, 'partition')}"]
        if self._size:
            parts.append(f"{format_size(self.copied)} of {format_size(self._size)}")
        return ", ".join([*parts, *time_left(min(share, 1.0), self.seconds)])

    def write_line(self, line: str) -> None:
        super().write_line(f"stratalog: {line}")
