"""The lines of `stratalog compaction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, Output
from stratalog.cli.tables import print_table
from stratalog.cli.wording import plural, size, timestamp

_STYLES = {"running": GOOD, "due": DOUBTFUL, "set aside": BAD, "waiting": QUIET}
_BAR = 24
Row = Mapping[str, Any]


def status_lines(output: Output, rows: Sequence[Row], *, show_empty: bool) -> None:
    if output.as_json:
        for row in rows:
            output.json(dict(row))
        return
    if not rows:
        output.line("no topic is compacted; cleanup.policy=compact makes one so")
    shown = [row for row in rows if show_empty or _bytes(row)]
    for row in shown:
        name = f"{row['topic']}-{row['partition']}"
        output.line((name, NAME), "  ", (row["state"], _STYLES[row["state"]]), f"  {row['reason']}")
        parts = [row["clean_bytes"], row["cleanable_bytes"], row["uncleanable_bytes"]]
        output.line(
            "  ",
            *_bar(parts),
            f"  clean {size(parts[0])}, dirty {size(parts[1])} ({row['dirty_ratio']:.0%}), not yet {size(parts[2])}",
        )
        if parts[2] and row["blocked_by"] not in row["reason"]:
            output.line(("  not yet: " + row["blocked_by"], QUIET))
        if row["last_run"] is not None:
            output.line((f"  last run {timestamp(row['last_run_ms'])}: {_saved(row['last_run'])}", QUIET))

    if len(shown) < len(rows):
        output.line((f"{plural(len(rows) - len(shown), 'empty log')} not shown; --all shows them", QUIET))


def _bytes(row: Row) -> int:
    return int(row["clean_bytes"] + row["cleanable_bytes"] + row["uncleanable_bytes"])


def _bar(parts: Sequence[int]) -> list[tuple[str, str]]:
    """Clean, dirty and not yet, to scale; what is there has at least one character."""
    total = sum(parts) or 1
    widths = [max(1, round(_BAR * part / total)) if part else 0 for part in parts]
    return [
        (sign * width, style)
        for sign, width, style in zip("█▓░", widths, (GOOD, DOUBTFUL, QUIET), strict=True)
        if width
    ]


def _saved(run: Row) -> str:
    before, after = run["bytes_before"], run["bytes_after"]
    part = f", {1 - after / before:.0%} less" if before else ""
    return (
        f"{size(before)} became {size(after)}{part}; {plural(run['keys'], 'key')} up to offset "
        f"{run['first_dirty_offset']}"
    )


def dry_run_lines(output: Output, rows: Sequence[Row]) -> None:
    for row in rows:
        if output.as_json:
            output.json(dict(row))
        else:
            text = _saved(row).replace(" became ", " would become ") if row["bytes_before"] else "nothing to clean now"
            output.line((f"{row['topic']}-{row['partition']}", NAME), f"  {text}")


def explain_lines(output: Output, topic: str, key: str, found: Sequence[Row]) -> None:
    if output.as_json:
        for partition in found:
            output.json(dict(partition))
        return
    if not any(partition["count"] for partition in found):
        output.line(f"no record of {topic} has the key {key!r}")
        return
    for partition in found:
        if partition["count"]:
            _explain_partition(output, topic, partition)


def _explain_partition(output: Output, topic: str, partition: Row) -> None:
    records = partition["records"]
    shown = "" if len(records) == partition["count"] else f", the newest {len(records)}"
    output.line((f"{topic}-{partition['partition']}", NAME), f"  {plural(partition['count'], 'record')}{shown}")
    reasons = list(dict.fromkeys(record["why"] for record in records))
    rows = [
        (
            record["offset"],
            timestamp(record["timestamp"]),
            "tombstone" if record["value_bytes"] is None else size(record["value_bytes"]),
            "stays" if record["stays"] else "goes",
            record["setting"],
            None if record["may_go_from_ms"] is None else timestamp(record["may_go_from_ms"]),
            _short(record["why"]),
        )
        for record in records
    ]
    print_table(output, ["offset", "time", "value", "next run", "decided by", "may go from", "why"], rows, "  ")
    for detail in dict.fromkeys(_detail(reason) for reason in reasons):
        if detail:
            output.line((f"  {detail}", QUIET))


def _short(why: str) -> str:
    """Up to where the details begin, which are the same for many records and said once below."""
    return why.partition("; ")[0].partition(", which lies")[0]


def _detail(why: str) -> str:
    short = _short(why)
    return why.removeprefix(short).lstrip(";, ")
