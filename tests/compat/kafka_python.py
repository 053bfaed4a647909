"""kafka-python, imported in spite of the deprecated functions it uses: pytest makes warnings errors here."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

__all__ = ["KafkaAdminClient", "KafkaConsumer", "KafkaProducer", "TopicPartition"]
