"""Finalized features in responses to ApiVersions; malformed bytes do no harm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.features import finalized_features
from stratalog.protocol.messages import encode_reply

KEYS = [{"api_key": key, "min_version": 0, "max_version": 5} for key in range(80)]
ANSWER: dict[str, Any] = {
    "error_code": 0,
    "api_keys": KEYS,
    "supported_features": [{"name": "group.version", "min_version": 0, "max_version": 1}],
    "finalized_features_epoch": 12,
    "finalized_features": [
        {"name": "transaction.version", "max_version_level": 2, "min_version_level": 0},
        {"name": "metadata.version", "max_version_level": 27, "min_version_level": 7},
    ],
    "zk_migration_ready": False,
}


def encoded(version: int, **changed: Any) -> memoryview:
    return memoryview(bytes(encode_reply(ApiKey.API_VERSIONS, version, ANSWER | changed)))


@pytest.mark.parametrize("version", [3, 4])
def test_the_level_in_force_is_the_highest_that_is_finalized(version: int) -> None:
    assert finalized_features(version, encoded(version)) == {"transaction.version": 2, "metadata.version": 27}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_responses_have_no_features(version: int) -> None:
    assert finalized_features(version, encoded(version)) == {}


def test_response_without_the_tag_has_no_features() -> None:
    plain = encode_reply(ApiKey.API_VERSIONS, 3, {"error_code": 0, "api_keys": KEYS})
    assert finalized_features(3, memoryview(bytes(plain))) == {}


def test_incomplete_response_has_no_features_or_those_before_the_end() -> None:
    whole = encoded(4)
    for end in range(len(whole)):
        assert set(finalized_features(4, whole[:end])) <= {"transaction.version", "metadata.version"}


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing(body: bytes) -> None:
    features = finalized_features(4, memoryview(body))
    assert all(isinstance(name, str) and -(2**15) <= level < 2**15 for name, level in features.items())
