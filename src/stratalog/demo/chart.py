"""The chart: how late each carrier leaves at each hour of the day. It needs no display."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_FEWEST = 20  # flights in a cell, in a full year; the mean of fewer says nothing
_A_YEAR = 300_000
_HOURS = range(5, 24)
_WORST = 40  # minutes; longer delays have the same colour
_QUIET = "#666666"


def draw(by_hour: pd.DataFrame, by_carrier: pd.DataFrame, flights: int, path: Path) -> None:
    """Write the chart to `path`.

    `by_hour` has the columns carrier, local_hour, flights and mean; `by_carrier` has carrier, name, flights, mean and
    late_share.
    """
    is_year = flights >= _A_YEAR
    enough = by_hour[by_hour["flights"] >= (_FEWEST if is_year else 1)]
    cells = enough.pivot_table(index="carrier", columns="local_hour", values="mean")
    ordered = by_carrier.sort_values("mean", ascending=False)
    carriers = ordered[ordered["carrier"].isin(cells.index)].reset_index(drop=True)
    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    heat, bars = figure.subplots(1, 2, width_ratios=[3.2, 1])
    _draw_hours(heat, figure, cells.reindex(index=carriers["carrier"], columns=list(_HOURS)), carriers)
    _draw_carriers(bars, carriers)
    lesson = ": the later the day, the later the plane" if is_year else ""
    figure.suptitle(f"{flights:,} flights from New York, 2013{lesson}", x=0.01, ha="left", fontsize=15, weight="bold")
    source = "Events through a broker, a Spark stream, a compacted topic and SQL; checked against pandas."
    few = f"Hours with fewer than {_FEWEST} flights are left white.   " if is_year else ""
    figure.supxlabel(f"{few}{source}", x=0.01, ha="left", fontsize=8, color=_QUIET)
    figure.savefig(path, dpi=120)


def _draw_hours(axes: Axes, figure: Figure, cells: pd.DataFrame, carriers: pd.DataFrame) -> None:
    shown = cells if len(cells) else cells.reindex(["-"])
    image = axes.imshow(shown.to_numpy(dtype=float), aspect="auto", cmap="YlOrRd", vmin=0, vmax=_WORST)
    axes.set_xticks(range(len(_HOURS)), [f"{hour:02d}" for hour in _HOURS])
    axes.set_yticks(range(len(carriers)), [f"{row['name']}  {row['carrier']}" for _, row in carriers.iterrows()])
    axes.set_xlabel("scheduled hour of departure, New York")
    axes.set_title("mean delay at departure, minutes", loc="left", fontsize=10, color=_QUIET)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # White lines between the cells.
    axes.set_xticks([column - 0.5 for column in range(1, len(_HOURS))], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, len(carriers))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for row, (_, means) in enumerate(cells.iterrows()):
        for column, mean in enumerate(means):
            if pd.notna(mean):
                axes.text(column, row, f"{round(mean)}", ha="center", va="center", fontsize=8, color=_ink(mean))
    bar = figure.colorbar(image, ax=axes, pad=0.01, extend="max", aspect=40)
    bar.outline.set_visible(False)


def _draw_carriers(axes: Axes, carriers: pd.DataFrame) -> None:
    axes.barh(range(len(carriers)), carriers["mean"], height=0.7, color="#c0504d")
    widest = max(carriers["mean"].max(), 1.0) if len(carriers) else 1.0
    for row, (_, carrier) in enumerate(carriers.iterrows()):
        share = f", {carrier['late_share']:.0%} late" if pd.notna(carrier.get("late_share")) else ""
        label_at = max(carrier["mean"], 0) + widest / 40
        axes.text(label_at, row, f"{carrier['mean']:.0f} min{share}", va="center", fontsize=8, color=_QUIET)
    axes.set_yticks(range(len(carriers)), carriers["carrier"])
    axes.set_ylim(max(len(carriers), 1) - 0.5, -0.5)
    axes.set_xlim(right=widest * 1.75)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_title("all day; late: 15 minutes or more", loc="left", fontsize=10, color=_QUIET)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _ink(mean: float) -> str:
    return "white" if mean > 28 else "black"
