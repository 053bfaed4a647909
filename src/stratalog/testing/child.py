"""The process of a test's broker: `python -m stratalog.testing.child`, which broker_process.py starts.

The first line on stdin says how to start, and each further line is a command. The process answers each line with a line
of JSON on stdout. It logs to stderr. It ends when stdin ends and when its parent ends, even while it is paused, so it
never outlives the process that started it.
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
    """The commands of a test. Each command has the name of its method."""

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
        """Do what the housekeeper does regularly, without waiting for it."""
        for partition in list(self._broker.topics.all_partitions()):
            partition.log.roll_if_due()
            partition.log.apply_retention()


def _api_key(name: str) -> int:
    plain_name = name.replace("_", "").upper()
    for key in ApiKey:
        if key.name.replace("_", "") == plain_name:
            return key
    raise ValueError(f"api is {name!r}, which is unknown; known are: {', '.join(key.name for key in ApiKey)}")


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
        _reply({"result": broker.port})
        commands = Commands(broker, faults, clock)
        threading.Thread(target=_read_commands, args=(commands, loop), daemon=True).start()
        _watch_parent(loop, start["parent"])
        await stopping.wait()
    finally:
        faults.end_all()  # otherwise stop() would wait for dropped responses
        await broker.stop()


def _read_commands(commands: Commands, loop: asyncio.AbstractEventLoop) -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        reply = asyncio.run_coroutine_threadsafe(_run(commands, name, arguments), loop)
        _reply(reply.result())
    os._exit(0)  # the parent is gone, and its data is not needed


async def _run(commands: Commands, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        result = getattr(commands, name)(**arguments)
        return {"result": await result if isinstance(result, Awaitable) else result}
    except (StratalogError, ValueError) as error:
        return {"error": str(error)}


def _reply(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def _watch_parent(loop: asyncio.AbstractEventLoop, parent: int) -> None:
    """Exit when the parent has ended. A fork of the parent may keep stdin open, so its end is not enough."""
    if os.getppid() != parent:
        os._exit(0)
    loop.call_later(_PARENT_CHECK_SECONDS, _watch_parent, loop, parent)


def _die_with_parent() -> None:
    """Let the kernel kill this process when the parent's thread ends. A paused process can't watch its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return  # the parent is already gone
    start = json.loads(line)
    if start["dies_with_thread"]:
        _die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    try:
        asyncio.run(_serve(start))
    except (StratalogError, OSError) as error:
        _reply({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
