"""The expected result, computed by pandas from the package's table. It shares no code with the stream."""

from __future__ import annotations

import pandas as pd

from stratalog.demo.flights import package_file

COLUMNS = ["carrier", "hour", "flights", "cancelled", "late", "minutes", "worst"]
LATE_MINUTES = 15  # the FAA's definition of late


def delays_per_carrier_and_hour(limit: int) -> pd.DataFrame:
    """Aggregate the first `limit` flights to leave by carrier and scheduled hour, into COLUMNS: the number of flights,
    of cancelled ones, and of those at least LATE_MINUTES late, the sum of the delays, and the longest delay."""
    flights = pd.read_csv(package_file("flights.csv.zip"))
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    scheduled = hour + pd.to_timedelta(flights["minute"], unit="min")
    flights["scheduled"] = scheduled
    flights["hour"] = hour
    flights["left"] = scheduled + pd.to_timedelta(flights["dep_delay"].fillna(0), unit="min")
    first = flights.sort_values(["left", "scheduled", "carrier", "flight"], kind="stable").head(limit)
    delay = first["dep_delay"]
    flagged = first.assign(cancelled=delay.isna(), late=delay >= LATE_MINUTES, minutes=delay.fillna(0))
    groups = flagged.groupby(["carrier", "hour"])
    result = groups.agg(
        flights=("flight", "size"),
        cancelled=("cancelled", "sum"),
        late=("late", "sum"),
        minutes=("minutes", "sum"),
        worst=("dep_delay", "max"),
    )
    return in_order(result.reset_index())


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in a fixed order and with fixed types, so that tables can be compared."""
    table = table[COLUMNS].copy()
    table["hour"] = pd.to_datetime(table["hour"], utc=True).astype("datetime64[us, UTC]")
    for name in COLUMNS[2:]:
        table[name] = table[name].astype("Int64")
    table["carrier"] = table["carrier"].astype(object)
    return table.sort_values(["carrier", "hour"]).reset_index(drop=True)
