"""A client logs that it waits for an unreachable broker, and that the broker is back."""

from __future__ import annotations

import logging

import pytest

from stratalog import Admin, Consumer
from stratalog.testing import BrokerProcess


def test_an_unreachable_broker_and_its_return_are_logged_once(
    stratalog_fresh_broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    broker = stratalog_fresh_broker
    caplog.set_level(logging.INFO, "stratalog.client")
    broker.create_topic("orders")
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        assert consumer.poll(0.1) == {}
        broker.kill()
        assert consumer.poll(1) == {}
        warnings = [record for record in caplog.records if "trying again" in record.getMessage()]
        assert len(warnings) == 1
        assert warnings[0].levelno == logging.WARNING
        assert broker.bootstrap_servers in warnings[0].getMessage()
        broker.start()
        for _ in range(100):
            consumer.poll(0.1)
            if "is back" in caplog.text:
                break
        assert f"the broker at {broker.bootstrap_servers} is back" in caplog.text


def test_exiting_a_consumer_after_an_error_does_not_wait_for_an_unreachable_broker(
    stratalog_fresh_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    monkeypatch.setattr(Consumer, "close", lambda self, timeout=None: waits.append(timeout))
    with pytest.raises(ZeroDivisionError), Consumer(stratalog_fresh_broker.bootstrap_servers) as consumer:
        raise ZeroDivisionError
    monkeypatch.undo()
    consumer.close()
    assert waits == [5.0]


def test_a_timeout_error_has_the_duration_and_the_reason() -> None:
    with (
        Admin("127.0.0.1:1", default_api_timeout_ms=500, request_timeout_ms=400) as admin,
        pytest.raises(TimeoutError, match=r"gave up after 0.5 s: .*127.0.0.1:1"),
    ):
        admin.list_topics()
