"""The settings of Apache Kafka: names, defaults, types, and which can be changed at run time.

`python -m tests.compat.kafka_settings` starts a broker, sends DescribeConfigs v4, and writes the response to
tests/golden/kafka-settings.json, with which the tests of our settings compare.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8

from stratalog.settings import ValueType
from tests.compat.kafka_server import KafkaServer
from tests.golden.settings import FILE

TOPIC, BROKER = i8(2), i8(4)
DEFAULT_CONFIG = 5
SECONDS = 30


def ask(host: str, port: int) -> dict[str, dict[str, dict[str, Any]]]:
    resources = tuple(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((TOPIC, "events"), (BROKER, "1"))
    )
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=False)
    topic, broker = _call(host, port, request).results
    return {"topic": _described(topic), "broker": _described(broker)}


def _described(result: DescribeConfigsResult) -> dict[str, dict[str, Any]]:
    found = {
        one.name: {"default": _default(one), "type": ValueType(one.config_type).name, "read_only": one.read_only}
        for one in result.configs
    }
    return dict(sorted(found.items()))


def _default(one: DescribeConfigsResourceResult) -> str | None:
    for synonym in one.synonyms:
        if synonym.source == DEFAULT_CONFIG:
            return synonym.value
    return one.value if one.config_source == DEFAULT_CONFIG else None


def _call(host: str, port: int, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    body = io.BytesIO()
    entity_writer(DescribeConfigsRequest)(body, request)
    frame = struct.pack(">hhih", 32, 4, 1, -1) + b"\x00" + body.getvalue()
    with socket.create_connection((host, port), SECONDS) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    response, _ = entity_reader(DescribeConfigsResponse)(answer, 5)  # after the correlation id and the tagged fields
    return response


def as_json(settings: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return JSON with one line for each setting."""
    parts = []
    for part, described in settings.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in described.items())
        parts.append(f' "{part}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as path, KafkaServer(Path(path)) as server:
        server.create_topic("events")
        FILE.write_text(as_json(ask("127.0.0.1", server.port)))


if __name__ == "__main__":
    main()
