"""A broker whose event loop runs in a thread of the test's own process, where its calls can be watched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from stratalog.broker.broker import Broker
from stratalog.broker.settings import BrokerConfig

T = TypeVar("T")
SECONDS = 60


class BrokerThread:
    def __init__(self, data_dir: Path, settings: dict[str, object] | None = None) -> None:
        self._data_dir = data_dir
        self._config = BrokerConfig.parse(settings or {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")

    @property
    def thread_id(self) -> int | None:
        return self._thread.ident

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.broker = self.run(Broker.start(self._data_dir, self._config, "127.0.0.1", 0))
        except BaseException:
            self._end()
            raise
        self.port = self.broker.port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.broker.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()
