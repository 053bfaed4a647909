from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from stratalog.broker.broker import Broker
from stratalog.broker.settings import BrokerConfig


def test_other_calls_run_between_two_portions_of_long_work(tmp_path: Path) -> None:
    order: list[str] = []
    other_is_queued = threading.Event()

    def work() -> Generator[None, None, str]:
        assert other_is_queued.wait(60)
        for number in range(3):
            order.append(f"portion {number}")
            yield
        return "done"

    async def run() -> None:
        broker = await Broker.start(tmp_path, BrokerConfig.parse({}), "127.0.0.1", 0)
        portions = broker.run_in_portions(work())
        other = broker.run_in_background(lambda: order.append("other work"))
        other_is_queued.set()
        assert await portions == "done"
        await other
        await broker.stop()

    asyncio.run(run())
    assert order == ["portion 0", "other work", "portion 1", "portion 2"]


def test_failure_of_a_portion_is_raised(tmp_path: Path) -> None:
    def work() -> Generator[None, None, None]:
        yield
        raise ValueError("in the second portion")

    async def run() -> None:
        broker = await Broker.start(tmp_path, BrokerConfig.parse({}), "127.0.0.1", 0)
        try:
            with pytest.raises(ValueError, match="in the second portion"):
                await broker.run_in_portions(work())
        finally:
            await broker.stop()

    asyncio.run(run())
