"""The state folder of a job: the same job continues from it, a different job is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.pipelines.job_state import JobState

REKEY = {"job": "rekey", "source": "orders", "target": "by-customer", "key": "customer"}


def test_default_folder_is_named_after_the_job(spark: SparkSession) -> None:
    state = JobState(spark, None, REKEY, "rekey", "orders", "by-customer")
    assert state.path == str(Path.cwd() / "stratalog-state" / "rekey-orders-by-customer")
    assert not Path(state.path).exists()  # nothing is created before the job starts


def test_state_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    JobState(spark, str(tmp_path), REKEY).claim()
    JobState(spark, str(tmp_path), REKEY).claim()
    with pytest.raises(
        ConfigError, match=r"belongs to rekey, .*key 'customer', not to rekey, .*key 'day'.*\(--state\)"
    ):
        JobState(spark, str(tmp_path), REKEY | {"key": "day"})
    (tmp_path / "stratalog-job.json").write_text("{")
    with pytest.raises(ConfigError, match="belongs to another job"):
        JobState(spark, str(tmp_path), REKEY)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_offsets_are_those_of_the_last_completed_micro_batch(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    state = JobState(spark, f"{scheme}{tmp_path}", REKEY)
    assert (state.is_started, state.offsets()) == (False, {})
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id":"x"}')
    for step in (9, 10, 11):  # 11 is planned but not done
        planned = f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{step}}}}}'
        (tmp_path / "offsets" / str(step)).write_text(planned)
        if step < 11:
            (tmp_path / "commits" / str(step)).write_text("v1\n{}")
    state = JobState(spark, f"{scheme}{tmp_path}", REKEY)
    assert (state.is_started, state.offsets()) == (True, {"orders": {0: 10}})
