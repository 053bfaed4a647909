"""An error or a concurrent request of one log affects neither this log nor the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import CleanerBusyError
from stratalog.records.builder import build_batch
from stratalog.storage import LogConfig, LogDirectory
from stratalog.storage.compaction.compactor import Compactor

SETTINGS = {"cleanup_policy": ("compact",), "min_cleanable_dirty_ratio": 0.0}
LONGEST = 2**63 - 1


def test_dry_run_during_a_run_of_the_same_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogDirectory.open(tmp_path, LogConfig(**SETTINGS), background=False) as directory:  # type: ignore[arg-type]
        log = directory.log("accounts", 0)
        log.append(build_batch([(b"ada", b"1"), (b"ada", b"2")]))
        log.roll()
        run = Compactor.run
        refused = []

        def meanwhile(self: Compactor, *, dry: bool = False) -> object:
            if not dry:
                with pytest.raises(CleanerBusyError, match="accounts-0 is being compacted; retry"):
                    directory.cleaner.dry_run(log)
                refused.append(True)
            return run(self, dry=dry)

        monkeypatch.setattr(Compactor, "run", meanwhile)
        assert directory.cleaner.turn() is not None
        assert refused == [True]
        assert [record.value for record in log.records()] == [b"2"]
        log.append(build_batch([(b"ada", b"3")]))
        log.roll()
        assert directory.cleaner.dry_run(log).keys == 1  # the run is finished


def test_largest_delete_retention_ms_does_not_overflow(tmp_path: Path) -> None:
    config = LogConfig(**SETTINGS, delete_retention_ms=LONGEST)  # type: ignore[arg-type]
    clock = ManualClock()
    with LogDirectory.open(tmp_path, config, clock=clock, background=False) as directory:
        log = directory.log("accounts", 0)
        log.append(build_batch([(b"ada", b"1"), (b"ada", None)]))
        log.roll()
        assert directory.cleaner.turn() is not None
        clock.advance(10**12)
        log.append(build_batch([(b"bob", b"1")]))
        log.roll()
        assert directory.cleaner.turn() is not None
        assert [(record.key, record.value) for record in log.records()] == [(b"ada", None), (b"bob", b"1")]


def test_unexpected_error_in_one_log_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogDirectory.open(tmp_path, LogConfig(**SETTINGS), background=False) as directory:  # type: ignore[arg-type]
        logs = [directory.log("accounts", number) for number in range(2)]
        for log in logs:
            log.append(build_batch([(b"ada", b"1"), (b"ada", b"2")]))
            log.roll()
        live_producers = Compactor._live_producers

        def faulty(self: Compactor) -> object:
            if self._log is logs[0]:
                raise ZeroDivisionError("planted")
            return live_producers(self)

        monkeypatch.setattr(Compactor, "_live_producers", faulty)
        directory.turn()
        assert [len(list(log.records())) for log in logs] == [2, 1]
        assert directory.cleaner.set_aside()[logs[0].partition].reason == "ZeroDivisionError: planted"
