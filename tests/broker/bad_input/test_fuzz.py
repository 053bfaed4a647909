"""Mutated frames of all keys and versions against a broker process. `python -m bench.fuzz` sends a million of them."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import VERSIONS, ApiKey
from stratalog.protocol.messages import decode_request
from tests.broker.bad_input.campaign import run_campaign
from tests.broker.bad_input.fuzzer import KINDS, Fuzzer, World
from tests.campaigns import quick_and_full

SEED = 20_261
WORLD = World(["fuzz-1", "fuzz-2"], [uuid.UUID(int=1), uuid.UUID(int=2)], ["group"], ["member"])


@pytest.mark.parametrize("frames", quick_and_full(2_000, 20_000))
def test_mutated_frames_do_not_affect_the_broker_or_a_healthy_client(tmp_path: Path, frames: int) -> None:
    outcome = run_campaign(tmp_path / "data", SEED, range(frames))
    assert outcome.frames.total() == frames
    assert outcome.frames["answered"] > frames / 3
    assert outcome.frames["closed"] > frames / 5


def test_a_frame_is_reproducible() -> None:
    there, back = Fuzzer(7, WORLD), Fuzzer(7, WORLD)
    forward = [there.frame(number) for number in range(50)]
    assert [back.frame(number) for number in reversed(range(50))] == forward[::-1]
    assert forward != [Fuzzer(8, WORLD).frame(number) for number in range(50)]


def test_undamaged_requests_can_be_parsed() -> None:
    """Otherwise the fuzzer would test the parser only."""
    fuzzer = Fuzzer(7, WORLD)
    refused = 0
    for number, (key, version) in enumerate(KINDS):
        if key not in (ApiKey.PRODUCE, ApiKey.FETCH):
            body = fuzzer.body(key, version, random.Random(number))
            try:
                decode_request(key, version, memoryview(body))
            except MalformedRequestError:
                refused += 1
    assert refused == 0


def test_every_key_and_version_is_among_the_frames() -> None:
    assert {key for key, _ in KINDS} == set(VERSIONS)
    fuzzer = Fuzzer(SEED, WORLD)
    seen = set()
    for number in range(8_000):
        frame = fuzzer.frame(number)
        seen.add((int.from_bytes(frame[4:6], "big", signed=True), int.from_bytes(frame[6:8], "big", signed=True)))
    assert seen >= set(KINDS)
