"""The pytest plugin: a real broker as a fixture. docs/testing.md shows how to use it.

pytest loads it in every run if Stratalog is installed. So it imports only pytest until a test uses a broker, and adds
no hook that runs for each test until then.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stratalog.testing.broker_process import BrokerProcess

_LONGEST_NAME = 180  # the limit is 249 with the number after it
_SHOWN_LINES = 50
_topic_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("stratalog_settings", "settings of test brokers: Kafka's name=value, one per line", "linelist", [])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "stratalog_topic(partitions=1, config={}): the topic that the fixture stratalog_topic creates"
    )


@pytest.fixture(scope="session")
def stratalog_settings(pytestconfig: pytest.Config) -> Mapping[str, object]:
    """The settings of all brokers that the fixtures start, by Kafka's names. Override it in a conftest.py."""
    settings: dict[str, object] = {}
    for line in pytestconfig.getini("stratalog_settings"):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise pytest.UsageError(f"stratalog_settings has {line!r}; a line must be like num.partitions=3")
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def stratalog_broker(
    pytestconfig: pytest.Config, stratalog_settings: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker for the whole run; with xdist, one per worker. Whatever a test does to it is undone after the test."""
    from stratalog.testing.broker_process import BrokerProcess

    with BrokerProcess(tmp_path_factory.mktemp("stratalog"), stratalog_settings) as broker:
        care = _Care.of(pytestconfig)
        care.shared = broker
        yield broker
        care.shared = None


@pytest.fixture
def stratalog_new_broker(
    pytestconfig: pytest.Config, stratalog_settings: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., BrokerProcess]]:
    """A function that starts another broker for this test only: `stratalog_new_broker({"num.partitions": 3})`."""
    from stratalog.testing.broker_process import BrokerProcess

    started = _Care.of(pytestconfig).own = []

    def start(settings: Mapping[str, object] | None = None) -> BrokerProcess:
        directory = tmp_path_factory.mktemp("stratalog")
        started.append(BrokerProcess(directory, {**stratalog_settings, **(settings or {})}))
        return started[-1].start()

    yield start
    for broker in started:
        broker.close()
    started.clear()


@pytest.fixture
def stratalog_fresh_broker(stratalog_new_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """An empty broker for this test only."""
    return stratalog_new_broker()


@pytest.fixture
def stratalog_topic(request: pytest.FixtureRequest, stratalog_broker: BrokerProcess) -> Iterator[str]:
    """The name of an empty topic of stratalog_broker, for this test only. The marker
    `stratalog_topic(partitions=3, config={"cleanup.policy": "compact"})` sets its partitions and settings."""
    marker = request.node.get_closest_marker("stratalog_topic")
    test_name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:_LONGEST_NAME]
    name = f"{test_name}-{next(_topic_numbers)}"
    if marker is not None:
        _check_marker(marker)
    stratalog_broker.create_topic(name, *(marker.args if marker else ()), **(marker.kwargs if marker else {}))
    yield name
    stratalog_broker.put_right()
    stratalog_broker.delete_topic(name, if_exists=True)


def _check_marker(marker: pytest.Mark) -> None:
    def signature(partitions: int = 1, config: Mapping[str, object] | None = None) -> None: ...

    try:
        signature(*marker.args, **marker.kwargs)
    except TypeError:
        arguments = [*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())]
        raise TypeError(
            f"the marker is stratalog_topic({', '.join(arguments)}); "
            "it must be like stratalog_topic(partitions=1, config={})"
        ) from None


class _Care:
    """The hooks of the plugin, registered with the first broker. They show the brokers' logs with a failed test, and
    undo what each test did to the shared broker."""

    _KEY = pytest.StashKey["_Care"]()

    def __init__(self) -> None:
        self.shared: BrokerProcess | None = None
        self.own: list[BrokerProcess] = []
        self._seen = 0  # the length of the shared broker's log after earlier tests

    @classmethod
    def of(cls, config: pytest.Config) -> _Care:
        if cls._KEY not in config.stash:
            config.stash[cls._KEY] = care = cls()
            config.pluginmanager.register(care)
        return config.stash[cls._KEY]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        outcome = yield
        report = outcome.get_result()  # type: ignore[attr-defined]  # for the types of older versions of pytest
        if report.failed:
            logs = [(broker, broker.logs) for broker in self.own]
            if self.shared is not None and _uses_shared(item):
                logs.append((self.shared, self.shared.logs[self._seen :]))
            for broker, log in logs:
                lines = log.splitlines()[-_SHOWN_LINES:]
                report.sections.append(
                    (f"log of the broker on {broker.bootstrap_servers}", "\n".join(lines) or "(nothing)")
                )

    @pytest.hookimpl(trylast=True)  # after the teardown of the test's own fixtures
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self.shared is not None and _uses_shared(item):
            self.shared.put_right()
            self._seen = len(self.shared.logs)


def _uses_shared(item: pytest.Item) -> bool:
    return "stratalog_broker" in getattr(item, "fixturenames", ())
