"""stratalog consume: records of topics become lines on stdout."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.broker_names import complete_group, complete_topic
from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    PATIENCE_MS,
    BootstrapServer,
    ClientSettings,
    client_config,
    unescaped,
)
from stratalog.cli.program import CommandError

HELP = """Print the records of topics, one a line.

Reads what is there, from the beginning if not told otherwise, and ends; with --follow it goes on with what comes. A
line is a record's value; with --key-separator, its key and its value; with --json, an object with all there is, that
`stratalog produce --json` takes back byte for byte. Partitions are read side by side, each in its order.

Several topics are named one after the other, or with --pattern by a regular expression that matches whole names. With
--group, topics that are created later and match are read too.

With --format, each record is printed as the template says: %t topic, %p partition, %o offset, %k key, %s value, %h
headers, %T timestamp in milliseconds, %K and %S the lengths of key and value (-1 for none), %% a percent sign; \\n,
\\t and \\xff count as in C. No newline is added.

With --group it is a member of that consumer group: it goes on where the group is, and commits what it has printed.

Offsets: 42, -10 (ten before the end of each partition), beginning, end. Times: 2026-01-31T12:00:00Z, -1h (or s, m, d),
milliseconds since 1970. What is "until" is not printed any more.

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


_POLLED = 20_000  # records that are printed, and committed, at once


def command(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", show_default=False, autocompletion=complete_topic, help="What to read."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", show_default=False, help="Read all topics whose names match."),
    ] = None,
    from_offset: Annotated[
        str | None, typer.Option("--from-offset", metavar="OFFSET", show_default=False, help="Begin here.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", show_default=False, help="Begin with the first record not older."),
    ] = None,
    until_offset: Annotated[
        str | None, typer.Option("--until-offset", metavar="OFFSET", show_default=False, help="End before this.")
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option("--until-time", metavar="TIME", show_default=False, help="End before the first record not older."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, show_default=False, help="Print so many records.")
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Read this one only. Repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", show_default=False, autocompletion=complete_group, help="Read as a member of this group."
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", show_default=False, help=r"Print key, this, value; \t is a tab."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON objects, for produce --json.")] = False,
    template: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", show_default=False, help=r"Print so, like '%k %s\n'; see above."),
    ] = None,
    settings: ClientSettings = None,
) -> None:
    from stratalog.cli.read_plan import Wanted
    from stratalog.cli.reading import Reading
    from stratalog.cli.record_lines import LineFormat
    from stratalog.cli.record_template import RecordTemplate
    from stratalog.cli.topic_choice import TopicChoice

    choice = TopicChoice.parse(topics or [], pattern)
    if template is not None and (as_json or key_separator is not None):
        raise CommandError("--format says all of what is printed; leave out --json and --key-separator")
    if as_json and key_separator is not None:
        raise CommandError("--key-separator is for plain lines; --json has the key as a field of the object")
    separator = None if key_separator is None else unescaped("--key-separator", key_separator)
    wanted = Wanted.parse(from_offset, from_time, until_offset, until_time)
    if follow and wanted.has_end:
        raise CommandError("--follow goes on for ever, --until-offset and --until-time end; leave out one of them")
    a_topic = choice.topics[0] if choice.topics else "TOPIC"
    if group is not None and (wanted.is_given or partitions):
        raise CommandError(
            "--group goes on where the group is, in the partitions that it is given; leave out --from-*, --until-* and "
            f"--partition, or move the group first: stratalog group reset {group} --topic {a_topic} --to-offset ..."
        )
    own: dict[str, object] = {
        "default.api.timeout.ms": PATIENCE_MS,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "max.poll.records": _POLLED,
    }
    if group is not None:
        own["group.id"] = group
    config = client_config(bootstrap_server, own, settings)
    line_format = LineFormat(as_json, separator, None if template is None else RecordTemplate(template))
    reading = Reading(config, choice, line_format, count, follow)
    if group is None:
        reading.run(wanted, partitions or [])
    else:
        reading.run_in_group()
