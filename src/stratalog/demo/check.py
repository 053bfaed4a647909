"""Compare the demo's results with what pandas computes: every row and every column, exactly.

Errors show the first differences.
"""

from __future__ import annotations

import pandas as pd

from stratalog.demo.errors import WrongResultError
from stratalog.demo.expectation import COLUMNS
from stratalog.demo.flights import package_file

_SHOWN = 3
_BY = ["carrier", "hour"]
_NEW_YORK = "America/New_York"


def check_same(what: str, actual: pd.DataFrame, expected: pd.DataFrame) -> int:
    """Compare two tables that `in_order` returned, and return the number of rows. Raise WrongResultError if they
    differ; `what` names the actual table."""
    if actual.duplicated(_BY).any():
        raise WrongResultError(
            f"{what} has carriers and hours twice: {_rows(actual[actual.duplicated(_BY, keep=False)])}"
        )
    both = actual.merge(expected, on=_BY, how="outer", indicator=True, suffixes=("", "_expected"))
    for side, problem in (("right_only", "lacks rows"), ("left_only", "has extra rows")):
        only = both[both["_merge"] == side]
        if len(only):
            raise WrongResultError(f"{what} {problem}, {len(only)} in all: {_rows(only)}")
    for name in COLUMNS[2:]:
        values, expected_values = both[name], both[f"{name}_expected"]
        equal = (values == expected_values) | (values.isna() & expected_values.isna())
        wrong = both[~equal.fillna(False)]
        if len(wrong):
            shown = _rows(wrong, name, f"{name}_expected")
            raise WrongResultError(f"{what} is wrong about {name} in {len(wrong)} of {len(both)} rows: {shown}")
    return len(both)


def check_results(by_carrier: pd.DataFrame, by_hour: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare the results of the SQL queries with the same sums by pandas. Raise WrongResultError if they differ."""
    names = pd.read_csv(package_file("airlines.csv")).set_index("carrier")["name"]
    local = expected.assign(
        name=expected["carrier"].map(names),
        local_hour=expected["hour"].dt.tz_convert(_NEW_YORK).dt.hour,
        left=expected["flights"] - expected["cancelled"],
    )
    for second, result in (("name", by_carrier), ("local_hour", by_hour)):
        by = ["carrier", second]
        sums = local.groupby(by)[["flights", "cancelled", "late", "minutes", "left"]].sum().reset_index()
        mean = sums["minutes"].astype(float) / sums["left"].astype(float)
        sums = sums.assign(mean=mean, late_share=sums["late"].astype(float) / sums["left"].astype(float))
        expected_rows = sums[result.columns].sort_values(by).reset_index(drop=True)
        rows = result.sort_values(by).reset_index(drop=True)
        try:
            pd.testing.assert_frame_equal(rows, expected_rows, check_dtype=False, check_exact=True)
        except AssertionError as error:
            raise WrongResultError(f"the SQL result by {second} is not what pandas computes: {error}") from None


def _rows(table: pd.DataFrame, *names: str) -> str:
    return "; ".join(", ".join(map(str, row)) for row in table[[*_BY, *names]].head(_SHOWN).itertuples(index=False))
