"""The topic that a job writes to: looked up before anything is written, and created where it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import ConfigError, UnknownTopicError

if TYPE_CHECKING:
    from stratalog.client.admin import Admin
    from stratalog.client.metadata import TopicInfo
    from stratalog.pipelines.job_state import JobState


def find_target(admin: Admin, topic: str, partitions: int | None, state: JobState) -> TopicInfo | None:
    """None: it is to be created. `partitions`: how many the caller wants it to have, None: any number.

    Raises ConfigError where it has another number, or is gone since the job wrote to it.
    """
    if partitions is not None and partitions < 1:
        raise ConfigError(f"partitions is {partitions}; it must be 1 or more")
    try:
        found = admin.describe_topic(topic)
    except UnknownTopicError:
        if state.is_started:
            what = f"the state in {state.path} says that records were written to {topic!r}, and there is no such topic"
            raise ConfigError(f"{what}; remove the state to write all again, or name another cluster") from None
        return None
    if partitions is not None and partitions != len(found.partitions):
        count = "1 partition" if len(found.partitions) == 1 else f"{len(found.partitions)} partitions"
        what = f"topic {topic!r} has {count}, not {partitions}"
        raise ConfigError(f"{what}; leave the number out (--partitions), or name another topic")
    return found
