"""Is what came out what pandas computes? Every row and every column, exactly; the first differences are shown."""

from __future__ import annotations

import pandas as pd

from stratalog.demo.errors import WrongResultError
from stratalog.demo.expectation import COLUMNS
from stratalog.demo.flights import package_file

_SHOWN = 3
_BY = ["carrier", "hour"]
_NEW_YORK = "America/New_York"


def check_same(what: str, found: pd.DataFrame, expected: pd.DataFrame) -> int:
    """The number of rows that were compared, all the same. Raises WrongResultError. Both are in_order()."""
    if found.duplicated(_BY).any():
        raise WrongResultError(
            f"{what} has carriers and hours twice: {_rows(found[found.duplicated(_BY, keep=False)])}"
        )
    both = found.merge(expected, on=_BY, how="outer", indicator=True, suffixes=("", "_expected"))
    for side, wording in (("right_only", "lacks"), ("left_only", "has what pandas does not")):
        only = both[both["_merge"] == side]
        if len(only):
            raise WrongResultError(f"{what} {wording}, in {len(only)} rows: {_rows(only)}")
    for name in COLUMNS[2:]:
        ours, theirs = both[name], both[f"{name}_expected"]
        wrong = both[~((ours == theirs) | (ours.isna() & theirs.isna())).fillna(False)]
        if len(wrong):
            shown = _rows(wrong, name, f"{name}_expected")
            raise WrongResultError(f"{what} is wrong about {name} in {len(wrong)} of {len(both)} rows: {shown}")
    return len(both)


def check_answers(by_carrier: pd.DataFrame, by_hour: pd.DataFrame, expected: pd.DataFrame) -> None:
    """What SQL answered, against the same sums by pandas."""
    names = pd.read_csv(package_file("airlines.csv")).set_index("carrier")["name"]
    local = expected.assign(
        name=expected["carrier"].map(names),
        local_hour=expected["hour"].dt.tz_convert(_NEW_YORK).dt.hour,
        left=expected["flights"] - expected["cancelled"],
    )
    for second, found in (("name", by_carrier), ("local_hour", by_hour)):
        by = ["carrier", second]
        sums = local.groupby(by)[["flights", "cancelled", "late", "minutes", "left"]].sum().reset_index()
        mean = sums["minutes"].astype(float) / sums["left"].astype(float)
        sums = sums.assign(mean=mean, late_share=sums["late"].astype(float) / sums["left"].astype(float))
        theirs = sums[found.columns].sort_values(by).reset_index(drop=True)
        ours = found.sort_values(by).reset_index(drop=True)
        try:
            pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_exact=True)
        except AssertionError as error:
            raise WrongResultError(f"what SQL answered by {second} is not what pandas has: {error}") from None


def _rows(table: pd.DataFrame, *names: str) -> str:
    return "; ".join(", ".join(map(str, row)) for row in table[[*_BY, *names]].head(_SHOWN).itertuples(index=False))
