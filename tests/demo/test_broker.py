from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog import Admin
from stratalog.demo.story import BROKER_SETTINGS
from stratalog.lab.serve_process import BrokerStartError, ServeProcess


def test_broker_serves_until_the_block_ends_and_then_its_process_is_gone(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", BROKER_SETTINGS, dies_with_thread=True) as running:
        with Admin(running.bootstrap_servers) as admin:
            assert list(admin.list_topics()) == []
        pid = running.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "everything is flushed" in running.logs


def test_broker_that_can_not_start_reports_the_reason(tmp_path: Path) -> None:
    broker = ServeProcess(tmp_path / "data", BROKER_SETTINGS | {"num.partitions": "many"})
    with pytest.raises(BrokerStartError, match=r"(?s)did not start.*num.partitions"), broker:
        pass
