"""stratalog compaction: show what is compacted, what is not yet, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import TIMEOUT_MS, AsJson, BrokerAddress, CommandGroup, argument, flag, option, unescape
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, Columns, Output, Row, time
from stratalog.cli.wording import format_size, format_time, is_internal, pluralize

_LONGEST_MS = 3_600_000  # the broker reads whole logs
_STYLES = {"running": GOOD, "due": DOUBTFUL, "set aside": BAD, "waiting": QUIET}
_BAR = 24

app = CommandGroup("""Show what compaction has done, what it waits for, and why a record is still there.

These commands need a Stratalog broker.

\b
Examples:
  stratalog compaction status
  stratalog compaction status accounts --dry-run
  stratalog compaction explain accounts customer-7
""")


@app.add("status")
def status(
    server: BrokerAddress,
    topic: Annotated[str | None, argument("[TOPIC]", "Only this topic.", autocompletion=complete_topic)] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Show what a run would save now.")] = False,
    show_all: Annotated[bool, flag("--all", "Include empty logs and internal topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how dirty logs are, and what a run waits for.

    Without TOPIC it shows all topics that are compacted. --dry-run shows what a run would save now; it reads the topic,
    and takes as long as compacting it.

    \b
    Examples:
      stratalog compaction status
      stratalog compaction status accounts --json
      stratalog compaction status accounts --dry-run
    """
    output = Output(as_json=as_json)
    with server.admin(_LONGEST_MS) as admin:
        rows = admin.compaction_status(topic, timeout=TIMEOUT_MS / 1000)
        if topic is None and not show_all:
            rows = [row for row in rows if not is_internal(row["topic"])]
        if dry_run:
            for name in dict.fromkeys(row["topic"] for row in rows):
                _show_dry_run(output, admin.compaction_dry_run(name))
        elif as_json:
            output.rows(rows, {})
        else:
            _show_status(output, rows, shows_empty=show_all or topic is not None)


@app.add("explain")
def explain(
    topic: Annotated[str, argument("TOPIC", "The topic.", autocompletion=complete_topic)],
    key: Annotated[str, argument("KEY", r"The key; \xff and other escapes have their meaning in C.")],
    server: BrokerAddress,
    partition: Annotated[int | None, option("--partition -p", "NUMBER", "Only this partition; by default all.")] = None,
    as_json: AsJson = False,
) -> None:
    r"""Show a key's records, and why each is there.

    For each record it shows from when it may be removed, and which setting decides.

    \b
    Examples:
      stratalog compaction explain accounts customer-7
      stratalog compaction explain accounts '\x00\x00\x00\x07' --partition 3
    """
    with server.admin(_LONGEST_MS) as admin:
        admin.describe_cluster(timeout=TIMEOUT_MS / 1000)  # fails sooner if no broker is there
        partitions = admin.explain_compaction(topic, unescape("KEY", key), partition)
    output = Output(as_json=as_json)
    if as_json:
        output.rows(partitions, {})
        return
    for row in partitions:
        if row["count"]:
            _show_records(output, topic, row)
    if not any(row["count"] for row in partitions):
        output.line(f"no record of {topic} has the key {key!r}")


def _show_status(output: Output, rows: Sequence[Row], *, shows_empty: bool) -> None:
    if not rows:
        output.line("no topic is compacted; a topic with cleanup.policy=compact is")
    shown = [row for row in rows if shows_empty or any(_sizes(row))]
    for row in shown:
        name = f"{row['topic']}-{row['partition']}"
        output.line((name, NAME), "  ", (row["state"], _STYLES[row["state"]]), f"  {row['reason']}")
        clean, dirty, blocked = _sizes(row)
        dirty_part = f"dirty {format_size(dirty)} ({row['dirty_ratio']:.0%})"
        output.line(
            "  ", *_bar(_sizes(row)), f"  clean {format_size(clean)}, {dirty_part}, not yet {format_size(blocked)}"
        )
        if blocked and row["blocked_by"] not in row["reason"]:
            output.line((f"  not yet: {row['blocked_by']}", QUIET))
        if row["last_run"] is not None:
            output.line((f"  last run {format_time(row['last_run_ms'])}: {_savings(row['last_run'])}", QUIET))
    if len(shown) < len(rows):
        output.line((f"{pluralize(len(rows) - len(shown), 'empty log')} not shown; --all shows them", QUIET))


def _sizes(row: Row) -> tuple[int, int, int]:
    return row["clean_bytes"], row["cleanable_bytes"], row["uncleanable_bytes"]


def _bar(sizes: Sequence[int]) -> list[tuple[str, str]]:
    """Draw clean, dirty and not yet cleanable bytes to scale. A part that is not empty has at least one character."""
    total = sum(sizes) or 1
    widths = [max(1, round(_BAR * part / total)) if part else 0 for part in sizes]
    return [
        (sign * width, style)
        for sign, width, style in zip("█▓░", widths, (GOOD, DOUBTFUL, QUIET), strict=True)
        if width
    ]


def _savings(run: Row, verb: str = "became") -> str:
    before, after = run["bytes_before"], run["bytes_after"]
    share = f", {1 - after / before:.0%} less" if before else ""
    keys = f"{pluralize(run['keys'], 'key')} up to offset {run['first_dirty_offset']}"
    return f"{format_size(before)} {verb} {format_size(after)}{share}; {keys}"


def _show_dry_run(output: Output, rows: Sequence[Row]) -> None:
    for row in rows:
        if output.as_json:
            output.json(row)
        else:
            savings = _savings(row, "would become") if row["bytes_before"] else "nothing to clean now"
            output.line((f"{row['topic']}-{row['partition']}", NAME), f"  {savings}")


def _show_records(output: Output, topic: str, partition: Row) -> None:
    records = partition["records"]
    newest = "" if len(records) == partition["count"] else f", the newest {len(records)}"
    output.line((f"{topic}-{partition['partition']}", NAME), f"  {pluralize(partition['count'], 'record')}{newest}")
    columns: Columns = {
        "offset": "offset",
        "time": time("timestamp"),
        "value": lambda row: "tombstone" if row["value_bytes"] is None else format_size(row["value_bytes"]),
        "next run": lambda row: "stays" if row["stays"] else "goes",
        "decided by": "setting",
        "may go from": time("may_go_from_ms"),
        "why": lambda row: _split_reason(row["why"])[0],
    }
    output.rows(records, columns, indent=2)
    for detail in dict.fromkeys(_split_reason(record["why"])[1] for record in records):
        if detail:
            output.line((f"  {detail}", QUIET))


def _split_reason(reason: str) -> tuple[str, str]:
    """Split a reason from its details, which are the same for many records and shown once below the table."""
    short, *details = re.split("[;,] ", reason, maxsplit=1)
    return short, "".join(details)
