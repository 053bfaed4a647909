from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog import Admin
from stratalog.demo import broker
from stratalog.demo.broker import DemoBroker
from stratalog.demo.errors import DemoError


def test_broker_serves_until_the_block_ends_and_then_its_process_is_gone(tmp_path: Path) -> None:
    with DemoBroker(tmp_path) as running:
        with Admin(running.bootstrap_servers) as admin:
            assert list(admin.list_topics()) == []
        pid = running.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "everything is flushed" in (tmp_path / "broker.log").read_text()


def test_broker_that_can_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "SETTINGS", ["num.partitions=many"])
    with pytest.raises(DemoError, match=r"did not start.*num.partitions"), DemoBroker(tmp_path):
        pass
