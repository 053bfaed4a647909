from __future__ import annotations

import pytest

from stratalog.broker.refused_settings import refusals, why_refused
from stratalog.broker.settings import BrokerConfig


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("controller.quorum.voters", "coordinate through ZooKeeper"),
        ("controller.quota.window.num", "quotas"),  # the finer rule comes first
        ("listener.name.internal.ssl.key.password", "without this prefix"),
        ("sasl.enabled.mechanisms", "not available yet"),
        ("transaction.two.phase.commit.enable", "KIP-939"),
        ("remote.log.storage.system.enable", "tiered storage"),
        ("inter.broker.protocol.version", "Kafka 4 has removed it"),
    ],
)
def test_refused_setting_has_its_reason(name: str, reason: str) -> None:
    assert reason in (why_refused(name) or "")


@pytest.mark.parametrize("name", ["controllers", "logg.dirs", "log.dirsx", ""])
def test_similar_name_is_not_refused_as_known(name: str) -> None:
    assert why_refused(name) is None


def test_no_setting_is_both_accepted_and_refused() -> None:
    assert [
        described.name for described in BrokerConfig.all_described() if why_refused(described.name) is not None
    ] == []


def test_every_rule_matches_its_own_name() -> None:
    for rule, reason in refusals():
        assert why_refused(rule + "x" if rule.endswith(".") else rule) == reason, rule
