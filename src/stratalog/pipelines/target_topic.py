"""Looks up the topic that a job writes to, before the job writes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import ConfigError, UnknownTopicError

if TYPE_CHECKING:
    from stratalog.client.admin import Admin
    from stratalog.client.metadata import TopicInfo
    from stratalog.pipelines.job_state import JobState


def find_target(admin: Admin, topic: str, partitions: int | None, state: JobState) -> TopicInfo | None:
    """Return the topic, or None if it must be created. `partitions` is the expected number, or None for any.

    Raises ConfigError if the number differs, or if the topic was deleted after the job wrote to it.
    """
    if partitions is not None and partitions < 1:
        raise ConfigError(f"partitions is {partitions}; it must be 1 or more")
    try:
        info = admin.describe_topic(topic)
    except UnknownTopicError:
        if state.is_started:
            raise ConfigError(
                f"according to the state in {state.path}, records were written to topic {topic!r}, which does not "
                "exist; remove the state to write everything again, or name another cluster"
            ) from None
        return None
    if partitions is not None and partitions != len(info.partitions):
        count = "1 partition" if len(info.partitions) == 1 else f"{len(info.partitions)} partitions"
        raise ConfigError(
            f"topic {topic!r} has {count}, not {partitions}; leave the number out (--partitions), or name another topic"
        )
    return info
