"""The chart: how late each carrier leaves at each hour of the day, as a picture. Drawn without a display."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_FEWEST = 20  # flights in a cell, of a whole year; the mean of less says nothing
_A_YEAR = 300_000
_HOURS = range(5, 24)


def draw(by_hour: pd.DataFrame, by_carrier: pd.DataFrame, flights: int, path: Path) -> None:
    """`by_hour`: carrier, local_hour, flights, mean. `by_carrier`: carrier, name, flights, mean, late_share."""
    is_year = flights >= _A_YEAR
    enough = by_hour[by_hour["flights"] >= (_FEWEST if is_year else 1)]
    cells = enough.pivot_table(index="carrier", columns="local_hour", values="mean")
    carriers = [code for code in by_carrier.sort_values("mean", ascending=False)["carrier"] if code in cells.index]
    cells = cells.reindex(index=carriers, columns=list(_HOURS))
    names = by_carrier.set_index("carrier")["name"]
    means = by_carrier.set_index("carrier")["mean"].reindex(carriers)
    figure = Figure(figsize=(13, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    heat, bars = figure.subplots(1, 2, width_ratios=[3.4, 1])
    rows = max(len(carriers), 1)
    means_by_hour = cells.reindex(carriers or ["-"]).to_numpy(dtype=float)
    image = heat.imshow(means_by_hour, aspect="auto", cmap="YlOrRd", vmin=0, vmax=40)
    heat.set_xticks(range(len(_HOURS)), [f"{hour:02d}" for hour in _HOURS])
    heat.set_yticks(range(len(carriers)), [f"{names[code]}  {code}" for code in carriers])
    heat.set_xlabel("scheduled hour of departure, New York")
    heat.set_title("mean delay at departure, minutes", loc="left", fontsize=10)
    for row, code in enumerate(carriers):
        for column, hour in enumerate(_HOURS):
            mean = cells.loc[code, hour]
            if pd.notna(mean):
                heat.text(column, row, f"{round(mean)}", ha="center", va="center", fontsize=7, color=_ink(mean))
    figure.colorbar(image, ax=heat, pad=0.01, extend="max")
    bars.barh(range(len(carriers)), means, color="#c0504d")
    bars.set_yticks(range(len(carriers)), carriers)
    bars.set_ylim(rows - 0.5, -0.5)
    bars.set_title("all day", loc="left", fontsize=10)
    bars.set_xlabel("minutes")
    bars.spines[["top", "right"]].set_visible(False)
    lesson = ": the later the day, the later the plane" if is_year else ""
    figure.suptitle(f"{flights:,} flights from New York, 2013{lesson}", x=0.01, ha="left", fontsize=14)
    figure.savefig(path, dpi=110)


def _ink(mean: float) -> str:
    return "white" if mean > 28 else "black"
