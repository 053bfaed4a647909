"""Exactly once, with a real Spark, real deaths and a real broker. `make faults` has more of the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.stream_rounds import Rounds


@pytest.mark.timeout(
    1800
)  # three sessions, each of which takes ten seconds, or minutes on a machine that does much else
def test_stream_is_in_the_topic_once_whatever_dies(tmp_path: Path) -> None:
    """Planted: workers before and behind their preparation, the driver behind the decision. Then five at random."""
    kinds = ("worker", "broker", "worker and broker", "broker", "driver and broker")
    Rounds(tmp_path, seed=7).run([("rows sent", "prepared", "decided")], kinds)
