"""`stratalog serve`: errors about its options, start and stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest

from stratalog.cli.data_directory import check_data_dir
from stratalog.records import build_batch
from stratalog.storage import Log, LogDirectory
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.broker.process import BrokerProcess


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a call that must fail before it serves."""
    command = [sys.executable, "-m", "stratalog", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "nonsense"), "--listen is 'nonsense'; it must be like 127.0.0.1:9092"),
        (("--listen", ":9392"), "the host is missing; 0.0.0.0:9392 is all addresses"),
        (("--listen", "PLAINTEXT://127.0.0.1:1"), "leave out PLAINTEXT://"),
        (("--listen", "127.0.0.1:99999"), "a port is 0 (any free port) to 65535"),
        (("--metrics", "foo"), "it must be like 127.0.0.1:9100"),
        (("--listen", "127.0.0.1:9", "--metrics", "127.0.0.1:9"), "the same as --listen"),
        (("--set", "nope=1"), "'nope' is not a setting of a broker"),
        (("--set", "num.partitions=x"), "num.partitions is 'x'; it must be a whole number"),
        (("--set", "num.partitions"), "--set is 'num.partitions'; it must be like"),
        (("--set", "num.partitions=1", "--set", "num.partitions=2"), "--set gives num.partitions twice"),
        (("--log-format", "xml"), "--log-format is 'xml'"),
        (("--log-level", "loud"), "--log-level is 'loud'"),
        (("--data-dir", "."), "--data-dir is empty, or the current directory"),
    ],
)
def test_invalid_option_is_named_with_its_value(arguments: tuple[str, ...], message: str) -> None:
    done = serve(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_file_is_refused_as_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = serve("--data-dir", str(tmp_path / "file"))
    assert (done.returncode, "which is a file; give a directory" in done.stderr) == (2, True)


def test_partition_directory_is_refused_as_data_directory(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(build_batch([(b"ada", b"tea")]))
    before = files_of(tmp_path)
    done = serve("--data-dir", str(tmp_path / "orders-0"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "which is a partition directory: it has 00000000000000000000.log; give the directory" in done.stderr
    assert f"--data-dir {tmp_path}\n" in done.stderr
    assert files_of(tmp_path) == before


def test_foreign_directory_is_refused_as_data_directory(tmp_path: Path) -> None:
    for name in ("notes.txt", "python-3", "a", "b"):
        (tmp_path / name).write_text("mine")
    before = files_of(tmp_path)
    done = serve("--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "which is not a data directory: it has a, b, notes.txt and 1 more, and no meta.properties; " in done.stderr
    assert "give an empty directory, or a new one" in done.stderr
    assert files_of(tmp_path) == before


def test_directories_of_brokers_are_accepted(tmp_path: Path) -> None:
    """A new directory, a mount point, Kafka's, one with logs but without a broker, and one of a failed start."""
    for name in ("new", "empty", "mounted", "kafka", "older", "failed"):
        (tmp_path / name).mkdir()
    (tmp_path / "new").rmdir()
    (tmp_path / "mounted" / "lost+found").mkdir()
    (tmp_path / "kafka" / "meta.properties").write_text("version=1\n")
    (tmp_path / "kafka" / "bootstrap.checkpoint").touch()
    with LogDirectory.open(tmp_path / "older") as directory:
        directory.log("orders", 7)
    (tmp_path / "older" / "README").touch()
    (tmp_path / "failed" / ".lock").touch()
    (tmp_path / "failed" / "meta.properties.tmp").touch()
    for name in ("new", "empty", "mounted", "kafka", "older", "failed"):
        check_data_dir(tmp_path / name)


def files_of(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def test_port_in_use_is_reported_with_advice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve("--data-dir", str(tmp_path / "data"), "--listen", address)
        assert done.returncode == 2
        assert f"can't listen on {address}: the address is in use" in done.stderr
        done = serve("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--metrics", address)
        assert done.returncode == 2
        assert f"can't serve metrics on {address}: the address is in use" in done.stderr
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_stops_the_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.stop(number) == 0
    assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
    log = broker.logs
    assert f"stopping ({number.name})" in log
    assert "stopped, everything is flushed" in log


def test_ready_line_shows_another_advertised_host(tmp_path: Path) -> None:
    settings = {"advertised.listeners": "PLAINTEXT://kafka.example:9092"}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        assert "clients use kafka.example:9092 (advertised.listeners)" in broker.ready_line


def test_ready_line_shows_another_advertised_port(tmp_path: Path) -> None:
    settings = {"advertised.listeners": "PLAINTEXT://127.0.0.1:9"}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        assert "clients use 127.0.0.1:9 (advertised.listeners)" in broker.ready_line
    with BrokerProcess(tmp_path / "data") as broker:
        assert "clients use" not in broker.ready_line


def test_metrics_count_requests(tmp_path: Path) -> None:
    arguments = ("--metrics", "127.0.0.1:0", "--log-format", "json")
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        page = broker.ready_line.split("metrics on ")[1].strip()
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            assert client.recv(4096)
        with urllib.request.urlopen(page, timeout=30) as answer:
            text = answer.read().decode()
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(100) == b""
    assert 'stratalog_request_seconds_count{api="api_versions"} 1.0' in text
    assert "stratalog_connections_accepted_total 1.0" in text
    entries = [json.loads(line) for line in broker.logs.splitlines()]
    assert any("it uses HTTP" in entry["message"] for entry in entries)
    assert {"time", "level", "logger", "message"} == set(entries[0])


def test_running_thread_does_not_keep_the_process_after_a_stop() -> None:
    script = """
        import threading
        from stratalog.cli.serve import _exit_without_threads
        threading.Thread(target=threading.Event().wait).start()
        print("stopped")
        _exit_without_threads()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "stopped\n"
    assert "a batch was still being compressed" in done.stderr
