from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread

from stratalog.demo.chart import draw


@pytest.mark.parametrize("flights", [1, 336_776])
def test_chart_is_a_picture_with_something_on_it(tmp_path: Path, flights: int) -> None:
    hours = pd.DataFrame(
        [("UA", 5, 30, -0.4), ("UA", 17, 30, 40.0), ("HA", 9, 1, 23.0)],
        columns=["carrier", "local_hour", "flights", "mean"],
    )
    carriers = pd.DataFrame(
        [("UA", "United", 60, 20.0), ("HA", "Hawaiian", 1, 23.0)], columns=["carrier", "name", "flights", "mean"]
    )
    draw(hours, carriers, flights, tmp_path / "chart.png")
    pixels = imread(tmp_path / "chart.png")
    assert pixels.shape[0] > 500 and pixels.shape[1] > 1000
    assert len({tuple(pixel) for pixel in pixels[::7, ::7, :3].reshape(-1, 3)}) > 20


def test_chart_of_cancelled_flights_only_is_drawn(tmp_path: Path) -> None:
    hours = pd.DataFrame([("UA", 5, 1, None)], columns=["carrier", "local_hour", "flights", "mean"])
    carriers = pd.DataFrame([("UA", "United", 1, None)], columns=["carrier", "name", "flights", "mean"])
    draw(hours, carriers, 1, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
