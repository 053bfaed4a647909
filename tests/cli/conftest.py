"""A broker that the commands find without being told where it is."""

from __future__ import annotations

import pytest

from stratalog.testing import BrokerProcess


@pytest.fixture
def server(stratalog_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STRATALOG_BOOTSTRAP_SERVER", stratalog_broker.bootstrap_servers)
    return stratalog_broker.bootstrap_servers
