"""The process that a test's broker runs in: `python -m stratalog.testing.child`, started by broker_process.py.

Its first line on stdin says how to start, each further line is a command; each gets one line of JSON on stdout. It
never outlives the process that started it: it ends when stdin does, and when its parent is gone, even while a signal
has stopped it. Logs go to stderr.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable
from typing import Any

from stratalog.broker.broker import Broker
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.testing.faults import ArmedFault, FaultKind, Faults
from stratalog.testing.movable_clock import MovableClock

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_SECONDS = 0.5


class Commands:
    """What the test may ask for. A method's name is the command's."""

    def __init__(self, broker: Broker, faults: Faults, clock: MovableClock) -> None:
        self._broker = broker
        self._faults = faults
        self._clock = clock

    async def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        topics = self._broker.topics
        topics.check_new(name, partitions, config)
        await self._broker.run_in_background(lambda: topics.create(name, partitions, config))

    async def delete_topic(self, name: str, if_exists: bool) -> None:
        topics = self._broker.topics
        if topics.get(name) is not None or not if_exists:
            await self._broker.run_in_background(lambda: topics.delete(name))

    def arm(self, kind: str, seconds: float, api: str | None, count: int | None) -> int:
        key = None if api is None else _api_key(api)
        return self._faults.arm(ArmedFault(FaultKind(kind), seconds, key, count))

    def met(self, number: int) -> int:
        return self._faults.met(number)

    def end_fault(self, number: int) -> None:
        self._faults.end(number)

    def end_faults(self) -> None:
        self._faults.end_all()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def advance(self, milliseconds: int) -> list[Any]:
        self._clock.advance(milliseconds)
        await self._broker.run_in_background(self._apply_retention)
        self._broker.groups.expire_offsets()
        return [*self._clock.state()]

    def stop_clock(self) -> list[Any]:
        self._clock.stop()
        return [*self._clock.state()]

    def let_clock_go(self) -> list[Any]:
        self._clock.go()
        return [*self._clock.state()]

    def reset_clock(self) -> list[Any]:
        self._clock.reset()
        return [*self._clock.state()]

    def _apply_retention(self) -> None:
        """What the housekeeper does now and then; nobody wants to wait for it in a test."""
        for partition in list(self._broker.topics.all_partitions()):
            partition.log.roll_if_due()
            partition.log.apply_retention()


def _api_key(name: str) -> int:
    wanted = name.replace("_", "").upper()
    for key in ApiKey:
        if key.name.replace("_", "") == wanted:
            return key
    raise ValueError(f"api is {name!r}, which is not served; known are: {', '.join(key.name for key in ApiKey)}")


async def _serve(start: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    clock = MovableClock(*start["clock"])
    config = BrokerConfig.parse(start["settings"])
    broker = await Broker.start(start["data_dir"], config, start["host"], start["port"], clock=clock)
    faults = Faults(broker.server.serve)
    broker.server.serve = faults.serve
    try:
        _answer({"result": broker.port})
        commands = Commands(broker, faults, clock)
        threading.Thread(target=_read_commands, args=(commands, loop), daemon=True).start()
        _watch_parent(loop, start["parent"])
        await stopping.wait()
    finally:
        faults.end_all()  # or stopping would wait for answers that never come
        await broker.stop()


def _read_commands(commands: Commands, loop: asyncio.AbstractEventLoop) -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answer = asyncio.run_coroutine_threadsafe(_do(commands, name, arguments), loop)
        _answer(answer.result())
    os._exit(0)  # who started it is gone: nobody wants its data


async def _do(commands: Commands, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        result = getattr(commands, name)(**arguments)
        return {"result": await result if isinstance(result, Awaitable) else result}
    except (StratalogError, ValueError) as error:
        return {"error": str(error)}


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _watch_parent(loop: asyncio.AbstractEventLoop, parent: int) -> None:
    """A fork of the parent may keep stdin open."""
    if os.getppid() != parent:
        os._exit(0)
    loop.call_later(_PARENT_CHECK_SECONDS, _watch_parent, loop, parent)


def _die_with_parent() -> None:
    """By the kernel's hand, for when this process is stopped and can't look. It acts when the parent's thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return  # who started it is gone already
    start = json.loads(line)
    if start["dies_with_thread"]:
        _die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(_serve(start))
    except (StratalogError, OSError) as error:
        _answer({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
