"""stratalog topic: list, describe, create, change, move and delete topics."""

from __future__ import annotations

import sys
from typing import Annotated, TypeAlias

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import (
    AsJson,
    BrokerAddress,
    CommandGroup,
    DryRun,
    Yes,
    argument,
    confirm_deletion,
    flag,
    option,
    parse_pairs,
    report_errors,
)
from stratalog.cli.output import QUIET, STRONG, Columns, Output, Row, ids, size, text
from stratalog.cli.program import CommandError
from stratalog.cli.topic_reassign import reassign
from stratalog.cli.wording import format_size, pluralize, printable
from stratalog.client.admin import Admin, ConfigResource, ConfigSource, NewTopic, OffsetSpec
from stratalog.client.administration.topics import CHOSEN_BY_BROKER
from stratalog.client.errors import ClientError, TopicExistsError, UnknownTopicOrPartitionError
from stratalog.client.metadata import NO_LEADER, TopicInfo, TopicPartition

Name: TypeAlias = Annotated[str, argument("TOPIC", "The name of the topic.", autocompletion=complete_topic)]
Names: TypeAlias = Annotated[list[str], argument("TOPIC...", "Names of topics.", autocompletion=complete_topic)]
Settings: TypeAlias = Annotated[
    list[str] | None, option("--set --config", "NAME=VALUE", "A setting, by Kafka's name. Repeatable.")
]

app = CommandGroup("""List, describe, create, change, move and delete topics.

\b
Examples:
  stratalog topic list
  stratalog topic create orders --partitions 6 --set retention.ms=86400000
  stratalog topic describe orders
  stratalog topic reassign --drain 2
""")
app.add("reassign")(reassign)


@app.add("list")
def list_topics(
    server: BrokerAddress,
    internal: Annotated[bool, flag("--internal", "Include the topics of the brokers themselves.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics.

    \b
    Examples:
      stratalog topic list
      stratalog topic list --internal --json
    """
    with server.admin() as admin:
        topics = admin.list_topics(include_internal=internal)
    rows = [
        {
            "type": "topic",
            "topic": name,
            "topic_id": str(info.id),
            "partitions": len(info.partitions),
            "internal": info.is_internal,
        }
        for name, info in topics.items()
    ]
    columns: Columns = {"topic": "topic", "partitions": "partitions", "id": "topic_id"}
    Output(as_json=as_json).rows(rows, columns, empty="no topics yet; `stratalog topic create NAME` creates one")


@app.add("describe")
def describe(topics: Names, server: BrokerAddress, as_json: AsJson = False) -> None:
    """Show partitions, offsets, sizes and settings.

    The settings are those of the topic itself that are not the defaults.

    \b
    Examples:
      stratalog topic describe orders
      stratalog topic describe orders payments --bootstrap-server kafka.example:9092 --json
    """
    output = Output(as_json=as_json)
    with server.admin() as admin:
        outcomes = admin.describe_topics(topics)
        for info in outcomes.succeeded().values():
            description = _describe(admin, info)
            if as_json:
                output.json(description)
            else:
                _show(output, description)
    report_errors(outcomes.errors.values())


@app.add("create")
def create(
    topics: Annotated[list[str], argument("TOPIC...", "Names of the new topics.")],
    server: BrokerAddress,
    partitions: Annotated[
        int | None, option("--partitions -p", "COUNT", "", min=1, show_default="the broker's num.partitions")
    ] = None,
    replication_factor: Annotated[
        int | None, option("--replication-factor -r", "COUNT", "", min=1, show_default="the broker's default")
    ] = None,
    assignment: Annotated[
        str | None,
        option("--assignment", "IDS,IDS,...", "The brokers of each partition, like 1:2,2:3; the first of them leads."),
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[bool, flag("--if-not-exists", "Accept topics that already exist.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create topics. Settings have Kafka's names.

    \b
    Examples:
      stratalog topic create orders
      stratalog topic create orders payments --partitions 6 --set cleanup.policy=compact
      stratalog topic create orders --if-not-exists
      stratalog topic create orders --partitions 6 --replication-factor 3
      stratalog topic create orders --assignment 1:2:3,2:3:1
    """
    assigned = _parse_assignment(assignment)
    if assigned and (partitions is not None or replication_factor is not None):
        raise CommandError("--assignment gives the partitions and their replicas; leave out the other counts")
    config = parse_pairs("--set", settings, "retention.ms=86400000")
    counts = (partitions or CHOSEN_BY_BROKER, replication_factor or CHOSEN_BY_BROKER)
    output = Output(as_json=as_json)
    with server.admin() as admin:
        new_topics = [NewTopic(name, *counts, config, assigned) for name in dict.fromkeys(topics)]
        outcomes = admin.create_topics(new_topics, validate_only=dry_run)
    for created in outcomes.succeeded().values():
        if as_json:
            counts_of = {"partitions": created.partitions, "replication_factor": created.replication_factor}
            output.json({"type": "topic", "topic": created.name, **counts_of, "created": not dry_run})
        else:
            verb = "would create" if dry_run else "created"
            replicas = created.replication_factor
            copies = f", {pluralize(replicas, 'replica')} each" if replicas > 1 else ""
            output.line(f"{verb} {created.name}: {pluralize(created.partitions, 'partition')}{copies}")
    accepted = TopicExistsError if if_not_exists else ()
    report_errors(error for error in outcomes.errors.values() if not isinstance(error, accepted))


@app.add("delete")
def delete(
    topics: Names,
    server: BrokerAddress,
    yes: Yes = False,
    if_exists: Annotated[bool, flag("--if-exists", "Accept topics that do not exist.")] = False,
) -> None:
    """Delete topics with all their records. On a terminal it asks first.

    \b
    Examples:
      stratalog topic delete orders
      stratalog topic delete orders payments --yes --if-exists
    """
    names = list(dict.fromkeys(topics))
    if not yes and sys.stdin.isatty():
        confirm_deletion(f"Delete {', '.join(names)} with all records?")
    with server.admin() as admin:
        outcomes = admin.delete_topics(names)
    output = Output()
    for name in outcomes.succeeded():
        output.line(f"deleted {name}")
    accepted = UnknownTopicOrPartitionError if if_exists else ()
    errors = (error for error in outcomes.errors.values() if not isinstance(error, accepted))
    report_errors(errors, can_create=False)


@app.add("alter")
def alter(
    topic: Name,
    server: BrokerAddress,
    settings: Settings = None,
    unset: Annotated[list[str] | None, option("--unset", "NAME", "Return to the default. Repeatable.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Change a topic's settings. Other settings stay as they are.

    \b
    Examples:
      stratalog topic alter orders --set retention.ms=3600000 --set max.message.bytes=2000000
      stratalog topic alter orders --unset retention.ms
    """
    changes: dict[str, object] = {**parse_pairs("--set", settings, "retention.ms=86400000")}
    for name in unset or ():
        if name in changes:
            raise CommandError(f"{name} is in --set and in --unset; leave out one of them")
        changes[name] = None
    if not changes:
        raise CommandError("there is nothing to change; give --set NAME=VALUE or --unset NAME")
    with server.admin() as admin:
        admin.describe_topic(topic)  # a missing topic has a better error here than in alter_config
        admin.alter_config(ConfigResource.topic(topic), changes, validate_only=dry_run)
    output = Output()
    for name, value in changes.items():
        verb = "would set" if dry_run else "set"
        output.line(f"{verb} {name} of {topic} to {'its default' if name in (unset or ()) else value}")


@app.add("add-partitions")
def add_partitions(
    topic: Name,
    total: Annotated[int, argument("TOTAL", "How many partitions the topic will have.", min=1)],
    server: BrokerAddress,
    dry_run: DryRun = False,
) -> None:
    """Give a topic more partitions.

    TOTAL is the number it will have. This can't be undone, and keys may go to other partitions than before.

    \b
    Examples:
      stratalog topic add-partitions orders 12
      stratalog topic add-partitions orders 12 --dry-run
    """
    with server.admin() as admin:
        before = len(admin.describe_topic(topic).partitions)
        admin.create_partitions({topic: total}, validate_only=dry_run).check()
    Output().line(f"{topic} {'would have' if dry_run else 'has'} {pluralize(total, 'partition')}; it had {before}")


def _parse_assignment(text: str | None) -> list[list[int]]:
    """Parse the replicas of each partition, as Kafka's tools write them: 1:2:3,2:3:1."""
    if text is None:
        return []
    partitions = [[each.strip() for each in part.split(":")] for part in text.split(",")]
    if not all(each.isdecimal() for part in partitions for each in part):
        raise CommandError(f"--assignment is {text!r}; it must be like 1:2:3,2:3:1, with broker ids for each partition")
    return [[int(each) for each in part] for part in partitions]


def _describe(admin: Admin, info: TopicInfo) -> Row:
    partitions = [TopicPartition(info.name, partition.partition) for partition in info.partitions]
    led = [key for key, each in zip(partitions, info.partitions, strict=True) if each.leader != NO_LEADER]
    settings = admin.describe_config(ConfigResource.topic(info.name))
    starts, ends = (
        {key: listed.offset for key, listed in admin.list_offsets(dict.fromkeys(led, spec)).check().items()}
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    sizes = _sizes(admin, info, partitions)
    eligible = admin.eligible_leaders([info.name])
    return {
        "type": "topic",
        "topic": info.name,
        "topic_id": str(info.id),
        "internal": info.is_internal,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "offline": list(partition.offline),
                "eligible": list(eligible.get(key, ())),
                "start_offset": starts.get(key),
                "end_offset": ends.get(key),
                "size": sizes.get(key),
            }
            for key, partition in zip(partitions, info.partitions, strict=True)
        ],
        "settings": {
            name: entry.value or ""
            for name, entry in sorted(settings.items())
            if entry.source is ConfigSource.TOPIC and not entry.is_sensitive
        },
    }


def _show(output: Output, topic: Row) -> None:
    partitions = topic["partitions"]
    replicas = len(partitions[0]["replicas"]) if partitions else 0
    known = [partition for partition in partitions if None not in (partition["start_offset"], partition["end_offset"])]
    records = sum(partition["end_offset"] - partition["start_offset"] for partition in known)
    sizes = [partition["size"] for partition in partitions if partition["size"] is not None]
    about = [
        pluralize(len(partitions), "partition"),
        pluralize(replicas, "replica"),
        f"at most {pluralize(records, 'record')}",
        *([format_size(sum(sizes))] if sizes else []),
        f"id {topic['topic_id']}",
    ]
    output.line((printable(topic["topic"]), STRONG), (f"  {', '.join(about)}", QUIET))
    columns: Columns = {
        "partition": text("partition"),
        "leader": lambda partition: str(partition["leader"]) if partition["leader"] != NO_LEADER else "none",
        "replicas": ids("replicas"),
        "in sync": ids("isr"),
        **{name: ids(name) for name in ("offline", "eligible") if any(partition[name] for partition in partitions)},
        "start": "start_offset",
        "end": "end_offset",
        "size": size("size"),
    }
    output.rows(partitions, columns, indent=2)
    for name, value in topic["settings"].items():
        output.line(f"  {printable(name)}={printable(value)}")


def _sizes(admin: Admin, info: TopicInfo, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the sizes of the partitions at their leaders, without those whose brokers don't report them."""
    leaders = {TopicPartition(info.name, partition.partition): partition.leader for partition in info.partitions}
    try:
        by_broker = admin.describe_log_dirs(
            {leader for leader in leaders.values() if leader >= 0}, partitions=partitions
        )
    except ClientError:
        return {}
    return {
        key: replica.size
        for broker, directories in by_broker.succeeded().items()
        for directory in directories.values()
        for key, replica in directory.replicas.items()
        if leaders.get(key) == broker and not replica.is_future
    }
