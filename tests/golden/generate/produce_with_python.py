"""Send a plan (plan.py) with one of the Python clients, in the environment of the clients:

python produce_with_python.py kafka-python|aiokafka|confluent-kafka BOOTSTRAP PLAN.json
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
LINGER_MS = 2000  # longer than sending a step takes, so that a step is a batch


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def headers_of(record: Json) -> list[tuple[str, bytes | None]]:
    return [(name, decoded(content)) for name, content in record["headers"]]


def with_kafka_python(bootstrap: str, topic: Json) -> None:
    from kafka import KafkaProducer

    options: Json = {"enable_idempotence": topic["mode"] != "plain"}
    if topic["mode"] == "transactional":
        options["transactional_id"] = topic["topic"]
    if topic["codec"] != "none":
        options["compression_type"] = topic["codec"]
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, acks="all", **options)
    if topic["mode"] == "transactional":
        producer.init_transactions()
    for step in topic["steps"]:
        if step["end"] != "flush":
            producer.begin_transaction()
        for record in step["records"]:
            producer.send(
                topic["topic"],
                key=decoded(record["key"]),
                value=decoded(record["value"]),
                headers=headers_of(record),
                timestamp_ms=record["timestamp"],
                partition=0,
            )
        producer.flush()
        if step["end"] == "commit":
            producer.commit_transaction()
        elif step["end"] == "abort":
            producer.abort_transaction()
    producer.close()


async def with_aiokafka(bootstrap: str, topic: Json) -> None:
    from aiokafka import AIOKafkaProducer

    codec = None if topic["codec"] == "none" else topic["codec"]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, acks="all", compression_type=codec)
    await producer.start()
    for step in topic["steps"]:
        for record in step["records"]:
            await producer.send(
                topic["topic"],
                key=decoded(record["key"]),
                value=decoded(record["value"]),
                headers=headers_of(record),
                timestamp_ms=record["timestamp"],
                partition=0,
            )
        await producer.flush()
    await producer.stop()


def with_confluent_kafka(bootstrap: str, topic: Json) -> None:
    from confluent_kafka import Producer

    options: Json = {"enable.idempotence": topic["mode"] != "plain"}
    if topic["mode"] == "transactional":
        options["transactional.id"] = topic["topic"]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": LINGER_MS,
            "acks": "all",
            "compression.type": topic["codec"],
            **options,
        }
    )
    if topic["mode"] == "transactional":
        producer.init_transactions(30)
    for step in topic["steps"]:
        if step["end"] != "flush":
            producer.begin_transaction()
        for record in step["records"]:
            producer.produce(
                topic["topic"],
                key=decoded(record["key"]),
                value=decoded(record["value"]),
                headers=list[tuple[str, str | bytes | None]](headers_of(record)),
                timestamp=record["timestamp"],
                partition=0,
            )
        if producer.flush(30) != 0:
            raise SystemExit(f"{topic['topic']}: not everything was delivered")
        if step["end"] == "commit":
            producer.commit_transaction(30)
        elif step["end"] == "abort":
            producer.abort_transaction(30)


def main(client: str, bootstrap: str, plan: str) -> None:
    for topic in json.loads(Path(plan).read_text()):
        if client == "kafka-python":
            with_kafka_python(bootstrap, topic)
        elif client == "aiokafka":
            asyncio.run(with_aiokafka(bootstrap, topic))
        else:
            with_confluent_kafka(bootstrap, topic)


if __name__ == "__main__":
    main(*sys.argv[1:])
