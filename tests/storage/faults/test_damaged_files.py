"""A truncated file, or a file with a flipped bit: reads return right records or an error with the position."""

from __future__ import annotations

import random

import pytest

from tests.storage.faults.damaged_files import TARGETS, DamagedLog, cut_to, cuts, flip, flips

CUTS = 90
FLIPS_A_FILE = 14


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> DamagedLog:
    return DamagedLog(tmp_path_factory.mktemp("damaged"))


@pytest.mark.parametrize("state", ["killed", "closed"])
def test_last_segment_truncated_anywhere_leaves_a_valid_prefix(log: DamagedLog, state: str) -> None:
    """`closed` has the clean-shutdown marker, although the file is torn."""
    rng = random.Random(f"cuts {state}")
    outcomes = set()
    for name, size in [*cuts(log, state, 3), *rng.sample(cuts(log, state), CUTS)]:
        try:
            outcomes.add(log.check(state, name, cut_to(size), rng))
        except AssertionError as error:
            raise AssertionError(f"{state}, {name} cut to {size} bytes: {error}") from error
    assert outcomes <= {"cut", "sound"} and "cut" in outcomes


@pytest.mark.parametrize("state", ["killed", "closed"])
@pytest.mark.parametrize("suffix", TARGETS)
def test_flipped_bit_never_causes_a_wrong_record(log: DamagedLog, state: str, suffix: str) -> None:
    rng = random.Random(f"flips {state} {suffix}")
    candidates = [(name, bit) for name, bit in flips(log, state) if name.endswith(suffix)]
    outcomes = []
    for name, bit in rng.sample(candidates, min(FLIPS_A_FILE, len(candidates))):
        try:
            outcomes.append(log.check(state, name, flip(bit), rng))
        except AssertionError as error:
            raise AssertionError(f"{state}, {name}, bit {bit}: {error}") from error
    if suffix == ".log":
        assert {"damaged", "cut"} & set(outcomes), "no flip of the log was noticed"
    else:
        assert set(outcomes) <= {"sound", "refused"}, f"the log itself is sound: {outcomes}"
