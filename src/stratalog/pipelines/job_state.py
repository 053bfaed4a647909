"""The state folder of a stream: Spark's checkpoint, and a file that names the job.

The same command continues from the state. A different job is refused, because it would take this job's progress for its
own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError
from stratalog.pipelines.table_files import absolute_path, table_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTE = "stratalog-job.json"
_FOLDER = "stratalog-state"


class JobState:
    """The state of `job`, which is identified by its fields. Without a `folder`, the path is made from `names`."""

    def __init__(self, spark: SparkSession, folder: str | None, job: Mapping[str, str | None], *names: str) -> None:
        # By default below the current directory, so that the same command finds it again.
        self.path = absolute_path(spark, folder or f"{_FOLDER}/{'-'.join(names)}")
        self._job = dict(job)
        self._files = table_files(spark, self.path)
        self.is_started = self._files.read("metadata") is not None
        self._check()

    def claim(self) -> None:
        """Create the folder and the file that names the job, before the first step. Raises StorageError if the folder
        is not writable."""
        self._files.make_folder("")
        if self._files.read(_NOTE) is None:
            self._files.create(_NOTE, json.dumps(self._job).encode())

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return the offsets up to which a job that reads topics is done, by topic and partition."""
        done = [int(name) for name in self._names("commits") if name.isdecimal()]
        planned = self._files.read(f"offsets/{max(done)}") if done else None
        if planned is None:
            return {}
        topics: dict[str, dict[str, int]] = json.loads(planned.splitlines()[-1])
        return {
            topic: {int(partition): offset for partition, offset in offsets.items()}
            for topic, offsets in topics.items()
        }

    def _names(self, folder: str) -> list[str]:
        return [file.path.rpartition("/")[2] for file in self._files.files(folder)]

    def _check(self) -> None:
        note = self._files.read(_NOTE)
        if note is None:
            return
        try:
            known = json.loads(note)
        except ValueError:
            known = None
        if known != self._job:
            owner = _described(known) if isinstance(known, dict) else "another job"
            raise ConfigError(
                f"the state in {self.path} belongs to {owner}, not to {_described(self._job)}; name another folder for "
                "this job (--state), or remove that one"
            )


def _described(job: Mapping[str, object]) -> str:
    return ", ".join(str(value) if name == "job" else f"{name} {value!r}" for name, value in job.items())
