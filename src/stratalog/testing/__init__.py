"""A real broker for tests: a pytest plugin (plugin.py), and `BrokerProcess` for tests without pytest.

    from stratalog.testing import BrokerProcess

    with BrokerProcess() as broker:
        ... any Kafka client, with broker.bootstrap_servers ...

pytest loads the plugin in every run, also without a test that uses a broker. So this package imports its modules when
they are first used, and only plugin.py needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.testing.broker_process import BrokerFailedError as BrokerFailedError
    from stratalog.testing.broker_process import BrokerProcess as BrokerProcess
    from stratalog.testing.controls import BrokerClock as BrokerClock
    from stratalog.testing.controls import Fault as Fault

__all__ = ["BrokerClock", "BrokerFailedError", "BrokerProcess", "Fault"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from stratalog.testing import broker_process

        return getattr(broker_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
