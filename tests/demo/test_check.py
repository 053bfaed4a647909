"""The check of the demo finds every kind of difference."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from stratalog.demo.check import check_results, check_same
from stratalog.demo.errors import WrongResultError
from stratalog.demo.expectation import delays_per_carrier_and_hour

SOME = 2000


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    return delays_per_carrier_and_hour(SOME)


def changed(table: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    table = table.copy()
    table.loc[7, column] = value
    return table


def test_the_same_rows_pass(expected: pd.DataFrame) -> None:
    assert check_same("the topic", expected.copy(), expected) == len(expected) > 100


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda table: table.drop(index=7), "lacks rows, 1 in all"),
        (lambda table: pd.concat([table, table.head(1)]), "twice"),
        (lambda table: changed(table, "carrier", "ZZ"), "lacks rows, 1 in all"),
        (lambda table: changed(table, "flights", table.loc[7, "flights"] + 1), "wrong about flights in 1 of"),
        (lambda table: changed(table, "cancelled", pd.NA), "wrong about cancelled"),
        (lambda table: changed(table, "late", 999), "wrong about late"),
        (lambda table: changed(table, "minutes", -1), "wrong about minutes"),
        (lambda table: changed(table, "worst", pd.NA), "wrong about worst"),
    ],
)
def test_every_difference_is_found(
    expected: pd.DataFrame, spoil: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    with pytest.raises(WrongResultError, match=f"the topic .*{message}"):
        check_same("the topic", spoil(expected.copy()), expected)


def test_extra_row_is_found(expected: pd.DataFrame) -> None:
    with pytest.raises(WrongResultError, match="the table has extra rows, 1 in all"):
        check_same("the table", expected, expected.drop(index=7))


def answers(expected: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the results of the SQL queries, computed row by row instead of as the check does it."""
    names = {"UA": "United Air Lines Inc.", "AA": "American Airlines Inc."}
    carriers, hours = [], []
    for code in names:
        rows = expected[expected["carrier"] == code]
        left = int(rows["flights"].sum() - rows["cancelled"].sum())
        mean, late = int(rows["minutes"].sum()) / left, int(rows["late"].sum()) / left
        carriers.append((code, names[code], int(rows["flights"].sum()), int(rows["cancelled"].sum()), mean, late))
        for hour in range(24):
            some = [row for row in rows.itertuples() if row.hour.tz_convert("America/New_York").hour == hour]
            if some:
                left = sum(row.flights - row.cancelled for row in some)
                hours.append((code, hour, sum(row.flights for row in some), sum(row.minutes for row in some) / left))
    return (
        pd.DataFrame(carriers, columns=["carrier", "name", "flights", "cancelled", "mean", "late_share"]),
        pd.DataFrame(hours, columns=["carrier", "local_hour", "flights", "mean"]),
    )


def test_results_of_sql_are_compared(expected: pd.DataFrame) -> None:
    expected = expected[expected["carrier"].isin(["UA", "AA"])]
    by_carrier, by_hour = answers(expected)
    check_results(by_carrier, by_hour, expected)
    for column, value in (("mean", 1.5), ("name", "No Airline"), ("flights", 0)):
        wrong = by_carrier.copy()
        wrong.loc[0, column] = value
        with pytest.raises(WrongResultError, match="by name"):
            check_results(wrong, by_hour, expected)
    with pytest.raises(WrongResultError, match="by local_hour"):
        check_results(by_carrier, by_hour.head(-1), expected)
