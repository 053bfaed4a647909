"""The folder in which a stream keeps how far it is: Spark's checkpoint, and beside it a note of whose it is.

The same command again goes on from there; another one, which would take what this has done for its own, is refused.
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
    """`job`: what makes it the same job, by name; `names`: what its folder is called after, where none is given."""

    def __init__(self, spark: SparkSession, given: str | None, job: Mapping[str, str | None], *names: str) -> None:
        # By default beside where the command runs, so that the same command finds it again.
        self.path = absolute_path(spark, given or f"{_FOLDER}/{'-'.join(names)}")
        self._job = dict(job)
        self._files = table_files(spark, self.path)
        self.is_started = self._files.read("metadata") is not None
        self._check()

    def claim(self) -> None:
        """Before the job's first step. Raises StorageError where the folder can't be written to."""
        self._files.make_folder("")
        if self._files.read(_NOTE) is None:
            self._files.create(_NOTE, json.dumps(self._job).encode())

    def offsets(self) -> dict[str, dict[int, int]]:
        """Of a job that reads topics: up to where it is done, by topic and partition."""
        done = [int(name) for name in self._names("commits") if name.isdecimal()]
        planned = self._files.read(f"offsets/{max(done)}") if done else None
        if planned is None:
            return {}
        found: dict[str, dict[str, int]] = json.loads(planned.splitlines()[-1])
        return {topic: {int(number): at for number, at in of.items()} for topic, of in found.items()}

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
            was = "of another job" if not isinstance(known, dict) else f"of {_told(known)}"
            what = f"the state in {self.path} is {was}, not of {_told(self._job)}"
            raise ConfigError(f"{what}; give another folder for this one (--state), or remove that one")


def _told(job: Mapping[str, object]) -> str:
    return ", ".join(str(value) if name == "job" else f"{name} {value!r}" for name, value in job.items())
