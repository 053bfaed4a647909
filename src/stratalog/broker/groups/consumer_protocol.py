"""What the broker reads of the metadata that consumers send with JoinGroup: the topics they subscribe to.

Every version of Kafka's ConsumerProtocolSubscription begins with the fields of version 0, so those are all that is
read: a version (int16) and the topics (an array of strings).
"""

from __future__ import annotations

from stratalog.broker.groups.record_fields import FieldReader

PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> set[str]:
    """Raises GroupRecordError where the bytes are something else."""
    fields = FieldReader(metadata, "a consumer's subscription")
    version = fields.int16()
    if version < 0:
        raise fields.error(f"has version {version}")
    return set(fields.array(fields.string))
