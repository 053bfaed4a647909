from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.group_lab import GroupLab, versions


def find(version: int, key_type: int, *keys: str) -> list[Any]:
    """Return every coordinator in the response. Responses before version 4 have one, without a key."""
    answer = asyncio.run(
        GroupLab().ask(ApiKey.FIND_COORDINATOR, version, key=keys[0], key_type=key_type, coordinator_keys=list(keys))
    )
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_this_broker_coordinates_every_group(version: int) -> None:
    (found,) = find(version, 0, "g")
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.none, 7, "broker.example", 9092)


def test_several_groups_are_found_with_one_request() -> None:
    found = find(6, 0, "a", "b", "a", "")
    assert [one.key for one in found] == ["a", "b", ""]
    assert {one.node_id for one in found} == {7}


@pytest.mark.parametrize("version", range(1, 7))
def test_this_broker_coordinates_every_transactional_id(version: int) -> None:
    (found,) = find(version, 1, "t")
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.none, 7, "broker.example", 9092)


@pytest.mark.parametrize("key_type", [2, 99, -1])
def test_unknown_kind_of_key_is_refused(key_type: int) -> None:
    (found,) = find(6, key_type, "x")
    assert found.error_code is ErrorCode.invalid_request
    assert str(key_type) in found.error_message
