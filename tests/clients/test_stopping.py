"""SIGTERM under load, and two brokers with the same data directory or port."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.broker.process import BrokerProcess
from tests.clients.admin import create_topic
from tests.clients.produce_load import RECOVERING, ProduceLoad

ROUNDS = 3


def test_a_graceful_stop_under_load_loses_nothing_and_needs_no_recovery(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.address, "load", 3)
        with ProduceLoad(broker.address, "load", 3) as load:
            for _ in range(ROUNDS):
                load.wait_for_more(1000)
                assert broker.stop() == 0
                assert (broker.data_dir / ".kafka_cleanshutdown").exists()
                broker.start()
            load.finish()
        load.check(broker.address)
        assert RECOVERING not in broker.logs
        assert broker.errors() == []


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        second = serve(broker.data_dir, "127.0.0.1:0")
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr == (
            f"stratalog: {broker.data_dir}: another process has this data directory open; "
            "stop it, or use another directory\n"
        )
        create_topic(broker.address, "still-there")


def test_a_second_broker_on_the_same_port_is_refused_and_leaves_its_data_directory_clean(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert "the address is in use" in serve(broker.data_dir, broker.address).stderr
        second = serve(tmp_path / "other", broker.address)
        assert (second.returncode, second.stdout) == (2, "")
        assert f"stratalog: can't listen on {broker.address}: the address is in use" in second.stderr
    with BrokerProcess(tmp_path / "other") as other:
        create_topic(other.address, "fine")


def serve(data_dir: Path, address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stratalog", "serve", "--data-dir", str(data_dir), "--listen", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
