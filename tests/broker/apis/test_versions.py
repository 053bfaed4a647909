"""ApiVersions: the table of served APIs, in every version."""

from __future__ import annotations

import pytest

from stratalog.protocol.api_keys import VERSIONS, ApiKey, OwnApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.data_lab import DataLab

SOFTWARE = {"client_software_name": "lab", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", range(5))
def test_all_served_apis_are_listed(data_lab: DataLab, version: int) -> None:
    answer = data_lab.ask(ApiKey.API_VERSIONS, SOFTWARE, version)
    assert answer.error_code == ErrorCode.none
    assert {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys} == {
        **{int(key): versions[:2] for key, versions in VERSIONS.items()},
        int(OwnApiKey.STRATALOG): (0, 0),
    }


def test_repeated_response_is_the_same(data_lab: DataLab) -> None:
    first = data_lab.ask(ApiKey.API_VERSIONS, SOFTWARE)
    assert data_lab.ask(ApiKey.API_VERSIONS, SOFTWARE) == first


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a_b", "ü", ".", "a\n"])
def test_software_name_that_kafka_refuses_is_an_invalid_request(data_lab: DataLab, name: str) -> None:
    for member in SOFTWARE:
        answer = data_lab.ask(ApiKey.API_VERSIONS, SOFTWARE | {member: name}, 3)
        assert answer.error_code == ErrorCode.invalid_request
        assert answer.api_keys == ()


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "librdkafka", "1.2.3-SNAPSHOT", "0"])
def test_software_names_of_real_clients_are_accepted(data_lab: DataLab, name: str) -> None:
    given = {"client_software_name": name, "client_software_version": name}
    assert data_lab.ask(ApiKey.API_VERSIONS, given).error_code == ErrorCode.none
