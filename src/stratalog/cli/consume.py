"""stratalog consume: print the records of topics, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratalog.cli.broker_names import complete_group, complete_topic
from stratalog.cli.options import TIMEOUT_MS, Client, CommandGroup, argument, flag, option, unescape
from stratalog.cli.positions import ReadPositions, TopicChoice
from stratalog.cli.program import CommandError
from stratalog.cli.reading import Reading
from stratalog.cli.record_lines import LineFormat
from stratalog.cli.record_template import RecordTemplate

_POLLED = 20_000  # records that are printed, and committed, at a time

app = CommandGroup()


@dataclass(frozen=True)
class Range:
    """Where to begin and end."""

    from_offset: Annotated[str | None, option("--from-offset", "OFFSET", "Begin here.")] = None
    from_time: Annotated[
        str | None, option("--from-time", "TIME", "Begin with the first record that is not older.")
    ] = None
    until_offset: Annotated[str | None, option("--until-offset", "OFFSET", "End before this offset.")] = None
    until_time: Annotated[
        str | None, option("--until-time", "TIME", "End before the first record that is not older.")
    ] = None

    def parse(self) -> ReadPositions:
        return ReadPositions.parse(self.from_offset, self.from_time, self.until_offset, self.until_time)


@dataclass(frozen=True)
class Format:
    """How records are printed."""

    key_separator: Annotated[
        str | None, option("--key-separator -K", "TEXT", r"Print the key, this text and the value; \t is a tab.")
    ] = None
    as_json: Annotated[bool, flag("--json", "Print JSON objects, for produce --json.")] = False
    template: Annotated[str | None, option("--format", "TEXT", r"A template, like '%k %s\n'; see above.")] = None

    def parse(self) -> LineFormat:
        if self.template is not None and (self.as_json or self.key_separator is not None):
            raise CommandError("--format defines all that is printed; leave out --json and --key-separator")
        if self.as_json and self.key_separator is not None:
            raise CommandError("--key-separator is for plain lines, and --json prints the key as a field; give one")
        separator = None if self.key_separator is None else unescape("--key-separator", self.key_separator)
        return LineFormat(self.as_json, separator, None if self.template is None else RecordTemplate(self.template))


@app.add("consume")
def consume(
    client: Client,
    positions: Range,
    line_format: Format,
    topics: Annotated[
        list[str] | None, argument("[TOPIC...]", "The topics to read.", autocompletion=complete_topic)
    ] = None,
    pattern: Annotated[str | None, option("--pattern", "REGEX", "Read all topics whose complete names match.")] = None,
    follow: Annotated[bool, flag("--follow -f", "Continue with new records until interrupted.")] = False,
    count: Annotated[int | None, option("--count -n", "COUNT", "Print this many records.", min=1)] = None,
    partitions: Annotated[
        list[int] | None, option("--partition -p", "NUMBER", "Read only this partition. Repeatable.", min=0)
    ] = None,
    group: Annotated[
        str | None,
        option("--group -g", "GROUP", "Read as a member of this group.", autocompletion=complete_group),
    ] = None,
) -> None:
    """Print the records of topics, a line each.

    Reads all records that exist, from the beginning by default, and ends; --follow continues with new records. A line
    is a record's value; with --key-separator, its key and its value; with --json, an object with all its fields, which
    `stratalog produce --json` sends again byte for byte. Each partition is read in order.

    Separate several topics with blanks. --pattern is a regular expression that matches complete names; with --group,
    matching topics that are created later are read too.

    --format is a template for each record: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T
    timestamp in milliseconds, %K and %S the lengths of key and value (-1 for null), %% a percent sign. \\n, \\t and
    \\xff have their meaning in C. No newline is added.

    With --group the command is a member of that consumer group: it continues at the group's committed offsets, and
    commits what it has printed.

    Offsets: 42, -10 (ten before the end of each partition), beginning, end. Times: 2026-01-31T12:00:00Z, -1h (or s, m,
    d), milliseconds since 1970. The record at the until position is not printed.

    \b
    Examples:
      stratalog consume orders
      stratalog consume orders --follow --from-offset end
      stratalog consume orders --from-time -1h --until-time -30m --json
      stratalog consume orders --partition 3 --from-offset 1000 --count 5 --key-separator ': '
      stratalog consume orders --group billing --follow
      stratalog consume orders payments --json
      stratalog consume --pattern 'orders-.*' --format '%t %p %o %k: %s\\n'
    """
    choice = TopicChoice.parse(topics or [], pattern)
    lines = line_format.parse()
    bounds = positions.parse()
    if follow and bounds.has_end:
        raise CommandError("--follow never ends, --until-offset and --until-time do; leave out one of them")
    if group is not None and (bounds.is_given or partitions):
        topic = choice.topics[0] if choice.topics else "TOPIC"
        raise CommandError(
            "--group reads from the group's offsets, in the partitions that it is assigned; leave out --from-*, "
            "--until-* and --partition, or reset the group first: "
            f"stratalog group reset {group} --topic {topic} --to-offset ..."
        )
    defaults: dict[str, object] = {
        "default.api.timeout.ms": TIMEOUT_MS,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "max.poll.records": _POLLED,
    }
    if group is not None:
        defaults["group.id"] = group
    reading = Reading(client.config(defaults), choice, lines, count, follow)
    if group is None:
        reading.run(bounds, partitions or [])
    else:
        reading.run_in_group()
