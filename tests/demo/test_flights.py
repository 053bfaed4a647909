"""Events of flights, compared with the package's table as pandas reads it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from stratalog.demo import flights
from stratalog.demo.errors import DemoError
from stratalog.demo.expectation import delays_per_carrier_and_hour

SOME = 3000


@pytest.fixture(scope="module")
def departures() -> pa.Table:
    return flights.departures()


@pytest.fixture(scope="module")
def values(departures: pa.Table) -> list[dict[str, Any]]:
    return [json.loads(value) for value in flights.events(departures)["value"].to_pylist()]


def test_every_flight_becomes_one_event(departures: pa.Table, values: list[dict[str, Any]]) -> None:
    table = pd.read_csv(flights.package_file("flights.csv.zip"))
    assert len(values) == len(table) == flights.ALL_FLIGHTS
    events = pd.DataFrame(values)
    assert events["miles"].sum() == table["distance"].sum()
    assert events["delay"].sum() == table["dep_delay"].sum()
    assert events["delay"].isna().sum() == table["dep_delay"].isna().sum()
    assert events["tail"].isna().sum() == table["tailnum"].isna().sum()
    assert (events["carrier"].value_counts() == table["carrier"].value_counts()).all()
    hours = pd.to_datetime(events["scheduled"]).dt.floor("h").value_counts().sort_index()
    expected = pd.to_datetime(table["time_hour"], utc=True).value_counts().sort_index()
    assert (hours.index == expected.index).all() and (hours.to_numpy() == expected.to_numpy()).all()


def test_events_are_ordered_by_departure_and_within_the_watermark(
    departures: pa.Table, values: list[dict[str, Any]]
) -> None:
    happened = departures["happened"].to_pandas()
    assert happened.is_monotonic_increasing
    scheduled = pd.to_datetime(pd.Series([value["scheduled"] for value in values]))
    lateness = scheduled.cummax() - scheduled
    assert pd.Timedelta("20 hours") < lateness.max() < pd.Timedelta(flights.LATEST)


def test_partitions_are_equally_far_in_time_everywhere(departures: pa.Table) -> None:
    partitions = departures["partition"].to_pylist()
    assert partitions[:5] == [0, 1, 2, 3, 0]
    assert set(partitions) == set(range(flights.PARTITIONS))


def test_last_event_has_no_flight_and_moves_the_watermark_past_all_others(departures: pa.Table) -> None:
    (event,) = flights.last_event(departures).to_pylist()
    value = json.loads(event["value"])
    assert {name for name, field in value.items() if field is not None} == {"scheduled"}
    latest = pd.Timestamp(departures["scheduled"].to_pandas().max(), unit="ms", tz="UTC")
    assert pd.Timestamp(value["scheduled"]) - pd.Timedelta(flights.LATEST) > latest + pd.Timedelta("1 hour")


def test_fewer_flights_are_the_first_to_leave(departures: pa.Table) -> None:
    assert flights.departures(SOME).equals(departures.slice(0, SOME))
    expected = delays_per_carrier_and_hour(SOME)
    assert expected["flights"].sum() == SOME
    events = [json.loads(value) for value in flights.events(departures.slice(0, SOME))["value"].to_pylist()]
    first = {(event["carrier"], pd.Timestamp(event["scheduled"]).floor("h")) for event in events}
    assert first == set(expected[["carrier", "hour"]].itertuples(index=False, name=None))


def test_missing_data_is_reported_with_advice() -> None:
    with pytest.raises(DemoError, match=r"trains.csv.*stratalog\[demo\]"):
        flights.package_file("trains.csv")
