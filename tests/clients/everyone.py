"""The clients by name."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, at its import
    from tests.clients.kafka_python import KafkaPythonClient

from tests.clients.aio import AioClient, LoopThread
from tests.clients.confluent import ConfluentClient
from tests.clients.interface import Client
from tests.clients.own import OwnClient

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")  # without Stratalog's own client


def make_client(name: str, thread: LoopThread | None = None) -> Client:
    """Create a client by name. aiokafka's event loop runs in `thread`, or in a thread of its own."""
    if name == OwnClient.name:
        return OwnClient()
    if name == "confluent-kafka":
        return ConfluentClient()
    return KafkaPythonClient() if name == "kafka-python" else AioClient(thread or LoopThread())
