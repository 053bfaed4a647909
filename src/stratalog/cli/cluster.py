"""stratalog cluster: the state of a cluster of several brokers, and elections of leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import AsJson, BrokerAddress, CommandGroup, argument, flag, report_errors
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, QUIET, STRONG, Columns, Output, Row, ids, text
from stratalog.cli.program import FOUND_PROBLEMS, CommandError
from stratalog.cli.wording import pluralize, printable
from stratalog.client.admin import Admin, ConfigResource, ElectionType, Reassignment
from stratalog.client.errors import ClientError
from stratalog.client.metadata import NO_LEADER, PartitionInfo, TopicPartition

if TYPE_CHECKING:
    from stratalog.client.admin import Outcomes

_MIN_INSYNC = "min.insync.replicas"
_SHOWN = 20  # partitions of a list

app = CommandGroup("""Show the state of a cluster of several brokers, and elect leaders.

\b
Examples:
  stratalog cluster status
  stratalog cluster elect --preferred
""")


@app.add("status")
def status(server: BrokerAddress, as_json: AsJson = False) -> None:
    """Show the brokers, the controller, and partitions that lack replicas or a leader.

    The exit code is 1 if a partition has no leader, so that no client can read or write it.

    \b
    Examples:
      stratalog cluster status
      stratalog cluster status --bootstrap-server kafka1.example:9092,kafka2.example:9092 --json
    """
    with server.admin() as admin:
        cluster = _describe(admin)
    output = Output(as_json=as_json)
    if as_json:
        output.json(cluster)
    else:
        _show(output, cluster)
    if cluster["leaderless"]:
        raise typer.Exit(FOUND_PROBLEMS)


@app.add("elect")
def elect(
    server: BrokerAddress,
    topics: Annotated[
        list[str] | None, argument("[TOPIC...]", "Only these topics; by default all.", autocompletion=complete_topic)
    ] = None,
    preferred: Annotated[bool, flag("--preferred", "Let the first replica of each partition lead.")] = False,
    unclean: Annotated[
        bool, flag("--unclean", "Give partitions without a leader any replica; committed records may be lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Elect leaders.

    --preferred gives each partition back to its first replica, if that is in sync. --unclean is the last resort for
    partitions that have no leader: a replica takes over that may lack committed records. It needs the topics' names.

    \b
    Examples:
      stratalog cluster elect --preferred
      stratalog cluster elect orders --unclean
    """
    if preferred == unclean:
        raise CommandError("give --preferred or --unclean; see stratalog cluster elect --help")
    if unclean and not topics:
        raise CommandError("--unclean may lose records; name the topics to which it applies")
    with server.admin() as admin:
        if unclean:
            outcomes = _elect_unclean(admin, topics or [])
        else:
            chosen = None if not topics else _partitions_to_elect(admin, topics)
            outcomes = admin.elect_leaders(chosen)
    output = Output(as_json=as_json)
    elected = sorted(outcomes.succeeded())
    for partition in elected:
        if as_json:
            output.json({"type": "elected", "topic": partition.topic, "partition": partition.partition})
        else:
            output.line(f"elected the leader of {partition}")
    if not elected and not outcomes.errors and not as_json:
        output.line("no election was necessary")
    report_errors(outcomes.errors.values())


def _partitions_to_elect(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions of the topics which their first replica does not lead."""
    return [
        TopicPartition(info.name, each.partition)
        for info in admin.describe_topics(topics).check().values()
        for each in info.partitions
        if each.leader != next(iter(each.replicas), NO_LEADER)
    ]


def _elect_unclean(admin: Admin, topics: list[str]) -> Outcomes[TopicPartition, None]:
    leaderless = [
        TopicPartition(info.name, each.partition)
        for info in admin.describe_topics(topics).check().values()
        for each in info.partitions
        if each.leader == NO_LEADER
    ]
    return admin.elect_leaders(leaderless, election_type=ElectionType.UNCLEAN)


def _describe(admin: Admin) -> Row:
    described = admin.describe_cluster()
    topics = admin.list_topics(include_internal=True)
    partitions = [partition for info in topics.values() for partition in info.partitions]
    minimum = _min_insync(admin, list(topics))
    replicas = Counter(replica for partition in partitions for replica in partition.replicas)
    leaders = Counter(partition.leader for partition in partitions if partition.leader != NO_LEADER)
    reassignments = admin.list_partition_reassignments()
    lacking = [partition for partition in partitions if _is_under_replicated(partition, reassignments)]
    eligible = admin.eligible_leaders({partition.topic for partition in lacking})
    known = {node.id: node for node in described.nodes}
    return {
        "type": "cluster_status",
        "cluster_id": described.cluster_id,
        "controller": None if described.controller is None else described.controller.id,
        "brokers": [
            {
                "broker": node_id,
                "host": known[node_id].host if node_id in known else None,
                "port": known[node_id].port if node_id in known else None,
                "rack": known[node_id].rack if node_id in known else None,
                "state": _state(known[node_id].is_fenced) if node_id in known else "away",
                "leaders": leaders[node_id],
                "replicas": replicas[node_id],
            }
            for node_id in sorted({*known, *replicas})
        ],
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": [_partition(each, eligible) for each in lacking],
        "under_min_isr": [
            _partition(each, eligible)
            for each in partitions
            if len(each.isr) < min(minimum.get(each.topic, 1), len(each.replicas))
        ],
        "leaderless": [_partition(each, eligible) for each in partitions if each.leader == NO_LEADER],
        "reassignments": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(running.replicas),
                "adding": list(running.adding),
                "removing": list(running.removing),
            }
            for partition, running in sorted(reassignments.items())
        ],
    }


def _is_under_replicated(partition: PartitionInfo, reassignments: Mapping[TopicPartition, Reassignment]) -> bool:
    """Return whether a replica is out of sync. Replicas that a reassignment adds don't count: they are being copied."""
    running = reassignments.get(TopicPartition(partition.topic, partition.partition))
    adding = () if running is None else running.adding
    return not set(partition.replicas).difference(adding) <= set(partition.isr)


def _state(is_fenced: bool) -> str:
    return "leaving" if is_fenced else "up"


def _min_insync(admin: Admin, topics: list[str]) -> dict[str, int]:
    """Return min.insync.replicas of each topic, without the topics that were deleted in the meantime."""
    try:
        outcomes = admin.describe_configs([ConfigResource.topic(name) for name in topics], names=[_MIN_INSYNC])
    except ClientError:
        return {}
    values = {resource.name: entries.get(_MIN_INSYNC) for resource, entries in outcomes.succeeded().items()}
    return {name: int(entry.value) for name, entry in values.items() if entry is not None and entry.value}


def _partition(partition: PartitionInfo, eligible: Mapping[TopicPartition, tuple[int, ...]]) -> Row:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline": list(partition.offline),
        "eligible": list(eligible.get(TopicPartition(partition.topic, partition.partition), ())),
    }


_BROKER_STYLES = {"up": GOOD, "leaving": DOUBTFUL, "away": BAD}


def _show(output: Output, cluster: Row) -> None:
    controller = "no controller" if cluster["controller"] is None else f"controller {cluster['controller']}"
    about = [
        controller,
        pluralize(len(cluster["brokers"]), "broker"),
        pluralize(cluster["topics"], "topic"),
        pluralize(cluster["partitions"], "partition"),
    ]
    output.line((f"cluster {printable(cluster['cluster_id'])}", STRONG), (f"  {', '.join(about)}", QUIET))
    columns: Columns = {
        "broker": text("broker"),
        "address": lambda row: None if row["host"] is None else f"{row['host']}:{row['port']}",
        "rack": "rack",
        "state": lambda row: (row["state"], _BROKER_STYLES[row["state"]]),
        "leaders": "leaders",
        "replicas": "replicas",
    }
    output.rows(cluster["brokers"], columns, indent=2)
    _show_partitions(output, "without a leader", BAD, cluster["leaderless"])
    _show_partitions(output, f"with fewer replicas in sync than {_MIN_INSYNC}", BAD, cluster["under_min_isr"])
    _show_partitions(output, "with replicas out of sync", DOUBTFUL, cluster["under_replicated"])
    if cluster["reassignments"]:
        output.line((f"{pluralize(len(cluster['reassignments']), 'partition')} being reassigned", DOUBTFUL))
        columns = {
            "topic": "topic",
            "partition": text("partition"),
            "replicas": ids("replicas"),
            "adding": ids("adding"),
            "removing": ids("removing"),
        }
        output.rows(cluster["reassignments"], columns, indent=2)
    if not cluster["under_replicated"] and not cluster["leaderless"]:
        output.line(("every partition has a leader, and all replicas are in sync", GOOD))


def _show_partitions(output: Output, what: str, style: str, partitions: list[Row]) -> None:
    if not partitions:
        return
    output.line((f"{pluralize(len(partitions), 'partition')} {what}", style))
    columns: Columns = {
        "topic": "topic",
        "partition": text("partition"),
        "leader": lambda row: str(row["leader"]) if row["leader"] != NO_LEADER else "none",
        "replicas": ids("replicas"),
        "in sync": ids("isr"),
        "offline": ids("offline"),
        "eligible": ids("eligible"),
    }
    output.rows(partitions[:_SHOWN], columns, indent=2)
    if len(partitions) > _SHOWN:
        output.line((f"  and {pluralize(len(partitions) - _SHOWN, 'partition')} more; --json lists all", QUIET))
