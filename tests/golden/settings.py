"""Apache Kafka 4.1.2's description of its own settings, which tests/compat/kafka_settings.py requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "kafka-settings.json"


def settings_of_kafka(part: str) -> dict[str, dict[str, Any]]:
    """Return the settings of a "topic" or a "broker": {name: {"default", "type", "read_only"}}."""
    described: dict[str, dict[str, Any]] = json.loads(FILE.read_text())[part]
    return described
