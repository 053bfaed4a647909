"""Exactly once, with a real Spark, real deaths and a real broker. `make faults` has more of the same."""

from __future__ import annotations

from pathlib import Path

from tests.spark.stream_rounds import KINDS, Rounds


def test_stream_is_in_the_topic_once_whatever_dies(tmp_path: Path) -> None:
    """Two planted deaths, of a worker behind its preparation and of the driver behind the decision; five at random."""
    Rounds(tmp_path, seed=7).run(("prepared", "decided"), KINDS)
