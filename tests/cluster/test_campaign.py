"""Ten random faults; `make faults` has hundreds. A failure names the seed, which `bench/cluster_faults.py` repeats."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.campaign import Campaign

COUNTS = {"kill": 5, "stop": 2, "cut": 2, "zookeeper": 1}


@pytest.mark.slow
def test_random_faults_lose_or_double_records(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, random.SystemRandom().randrange(10**6), dies_with_thread=True)
    campaign.run(COUNTS, seconds=float("inf"))
    assert campaign.done == COUNTS
