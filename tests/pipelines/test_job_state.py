"""Where a job keeps how far it is: found again by the same job, refused to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.pipelines.job_state import JobState

REKEY = {"job": "rekey", "source": "orders", "target": "by-customer", "key": "customer"}


def test_folder_is_called_after_the_job_where_none_is_given(spark: SparkSession) -> None:
    state = JobState(spark, None, REKEY, "rekey", "orders", "by-customer")
    assert state.path == str(Path.cwd() / "stratalog-state" / "rekey-orders-by-customer")
    assert not Path(state.path).exists()  # nothing is made before the job begins


def test_state_of_another_job_is_refused_with_what_it_is(spark: SparkSession, tmp_path: Path) -> None:
    JobState(spark, str(tmp_path), REKEY).claim()
    JobState(spark, str(tmp_path), REKEY).claim()
    with pytest.raises(ConfigError, match=r"is of rekey, .*key 'customer', not of rekey, .*key 'day'.*\(--state\)"):
        JobState(spark, str(tmp_path), REKEY | {"key": "day"})
    (tmp_path / "stratalog-job.json").write_text("{")
    with pytest.raises(ConfigError, match="of another job"):
        JobState(spark, str(tmp_path), REKEY)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_offsets_are_those_of_the_last_step_that_is_done(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    state = JobState(spark, f"{scheme}{tmp_path}", REKEY)
    assert (state.is_started, state.offsets()) == (False, {})
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text('{"id":"x"}')
    for step in (9, 10, 11):  # 11 is planned, and not done
        planned = f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{step}}}}}'
        (tmp_path / "offsets" / str(step)).write_text(planned)
        if step < 11:
            (tmp_path / "commits" / str(step)).write_text("v1\n{}")
    state = JobState(spark, f"{scheme}{tmp_path}", REKEY)
    assert (state.is_started, state.offsets()) == (True, {"orders": {0: 10}})
