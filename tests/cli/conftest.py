"""Brokers whose address is in the environment of the commands."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from stratalog.client import Admin
from stratalog.testing import BrokerProcess


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heeded() -> None:
    """Handle interrupts: a process that a shell started in the background ignores them, and so do its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def server(stratalog_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", stratalog_broker.bootstrap_servers)
    return stratalog_broker.bootstrap_servers


@pytest.fixture(scope="session")
def broker_to_be_emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("emptied"), {"num.partitions": 2}) as broker:
        yield broker


@pytest.fixture
def empty_server(broker_to_be_emptied: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker without topics and groups, for tests that list all of them. New topics have two partitions."""
    address = broker_to_be_emptied.bootstrap_servers
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", address)
    yield address
    with Admin(address) as admin:
        admin.delete_groups([group.name for group in admin.list_groups()]).check()
        admin.delete_topics(admin.list_topics()).check()
