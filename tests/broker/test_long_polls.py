"""The memory of waiting fetches: a client with many connections can't make the broker hold any amount."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stratalog.broker.long_polls import ALWAYS_ADMITTED, SHARE, LongPolls
from stratalog.protocol.api_keys import ApiKey
from tests.broker.data_lab import DataLab

PARTITIONS = 40  # a fetch that waits for so many takes about 24 KB


def poll_of_all_partitions() -> dict[str, Any]:
    partitions = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 10**6} for index in range(PARTITIONS)]
    return {
        "min_bytes": 1,
        "max_bytes": 10**6,
        "max_wait": 60_000,
        "topics": [{"topic": "t", "partitions": partitions}],
    }


def test_fetches_beyond_the_limit_are_answered_at_once(tmp_path: Path) -> None:
    with DataLab(tmp_path, socket_request_max_bytes=40_000, queued_max_request_bytes=SHARE * 50_000) as lab:
        lab.create("t", PARTITIONS)

        async def scenario() -> None:
            polls = [asyncio.create_task(lab.asking(ApiKey.FETCH, poll_of_all_partitions(), 12)) for _ in range(3)]
            await asyncio.sleep(0)
            answer = await asyncio.wait_for(polls[2], 10)
            assert {partition.error_code for partition in answer.responses[0].partitions} == {0}
            assert (lab.fetch.waiting, lab.long_polls.refusals) == (2, 1)
            assert 40_000 < lab.long_polls.held < 50_000
            polls[0].cancel()
            await asyncio.gather(polls[0], return_exceptions=True)
            again = asyncio.create_task(lab.asking(ApiKey.FETCH, poll_of_all_partitions(), 12))
            await asyncio.sleep(0)
            assert lab.fetch.waiting == 2
            lab.append("t", b"value", partition=7)
            for poll in (polls[1], again):
                assert (await asyncio.wait_for(poll, 10)).responses
            assert (lab.fetch.waiting, lab.long_polls.held) == (0, 0)

        asyncio.run(scenario())


def test_small_fetches_may_always_wait() -> None:
    polls = LongPolls(0)
    assert polls.admit(ALWAYS_ADMITTED)
    assert not polls.admit(ALWAYS_ADMITTED + 1)
    assert (polls.held, polls.refusals) == (ALWAYS_ADMITTED, 1)


def test_no_limit_for_held_bytes_is_no_limit_for_long_polls() -> None:
    polls = LongPolls(-1)
    assert polls.admit(2**40)
    polls.release(2**40)
    assert polls.held == 0
