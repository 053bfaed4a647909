from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.kafka_server import KafkaServer
from tests.compat.kafka_settings import as_json, ask
from tests.golden.settings import FILE


@pytest.mark.compat
def test_golden_settings_of_kafka_are_up_to_date(tmp_path: Path) -> None:
    with KafkaServer(tmp_path) as server:
        server.create_topic("events")
        assert as_json(ask("127.0.0.1", server.port)) == FILE.read_text(), "run: python -m tests.compat.kafka_settings"
