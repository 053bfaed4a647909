"""Sends a fuzzer's frames to a broker process of its own, while a healthy client checks the broker now and then.

The campaign fails if the broker crashes, if its log has an error, if the healthy client sees an effect, or if memory
grows too much. The error names the frames in flight, so that they can be sent again. At the end the broker is killed,
and another broker has to start on the same data directory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.broker.bad_input.attack import Attack, prepare, refresh
from tests.broker.bad_input.fuzzer import Fuzzer
from tests.broker.bad_input.healthy import HealthyClient
from tests.broker.bad_input.memory import MB, resident
from tests.broker.process import BrokerProcess

SETTINGS = {
    "stratalog.max.partitions": 150,  # otherwise the fuzzer would create thousands of logs, which are valid
    "group.initial.rebalance.delay.ms": 0,
}
GROWTH = 150 * MB
_A_ROUND = 2000


@dataclass(frozen=True)
class Outcome:
    frames: Counter[str]  # by outcome
    grown: int  # bytes of RAM
    seconds: float


class FuzzingFailedError(AssertionError):
    pass


def run_campaign(
    data_dir: Path, seed: int, numbers: range, progress: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run a campaign and return its outcome. Call `progress` with the number of sent frames after each round."""
    started = time.monotonic()
    with BrokerProcess(data_dir, SETTINGS) as broker:
        log = _Log(broker.log_file)
        healthy = HealthyClient(broker.port)
        healthy.check()
        before = resident(broker.pid)
        world = prepare(broker.port)
        attack = Attack(broker.port, Fuzzer(seed, world))
        for start in range(numbers.start, numbers.stop, _A_ROUND):
            frames = range(start, min(start + _A_ROUND, numbers.stop))
            try:
                attack.run(frames)
                assert broker.is_running, "the broker died"
                healthy.check()
                refresh(broker.port, world)
                errors = log.new_errors()
                assert not errors, f"its log has errors: {errors[:3]}"
                grown = resident(broker.pid) - before
                assert grown < GROWTH, f"it takes {grown // MB} MB more than before"
            except Exception as error:
                where = f"seed {seed}, frames {frames.start} to {frames.stop - 1}"
                raise FuzzingFailedError(
                    f"{where}: {type(error).__name__}: {error}; its log is {broker.log_file}"
                ) from error
            progress(len(frames))
        healthy.close()
        broker.kill()  # the next broker must be able to read what this one wrote
        broker.start()
        again = HealthyClient(broker.port)
        again.check()
        again.close()
    assert broker.errors() == []
    return Outcome(attack.outcomes, grown, time.monotonic() - started)


class _Log:
    """The broker's log, read once while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_errors(self) -> list[str]:
        with self._path.open() as log:
            log.seek(self._position)
            text = log.read()
            self._position = log.tell()
        return [line for line in text.splitlines() if " ERROR " in line or line.startswith("Traceback")]
