"""The broker of the tests: `stratalog serve` in its own process, as users run it, on a free port of the loopback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratalog.lab.serve_process import ServeProcess

# Retention must not delete records with old timestamps while a test reads them.
FOR_TESTS: dict[str, object] = {"log.retention.check.interval.ms": 365 * 24 * 60 * 60 * 1000}


class BrokerProcess(ServeProcess):
    """A `ServeProcess` on which retention is never applied, unless `settings` set its check interval."""

    def __init__(
        self, data_dir: Path, settings: Mapping[str, object] | None = None, *, arguments: tuple[str, ...] = ()
    ) -> None:
        super().__init__(data_dir, FOR_TESTS | dict(settings or {}), arguments=arguments)

    @property
    def address(self) -> str:
        return self.bootstrap_servers
