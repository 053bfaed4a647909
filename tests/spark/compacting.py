"""A topic with gaps, which its broker compacts within milliseconds."""

from __future__ import annotations

import time

from stratalog.client import Admin, Producer

EAGER_BROKER = {"log.cleaner.backoff.ms": 10}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": 0.01}
SECONDS = 120.0


def write_with_gaps(servers: str, topic: str, turn: int) -> None:
    """Write the same keys repeatedly, in transactions. Every third transaction and the last one are aborted."""
    with Producer(servers, transactional_id=f"gaps-{turn}") as producer:
        for number in range(30):
            producer.begin()
            for key in range(5):
                producer.send(topic, b"%d-%d" % (turn, number), key=b"%d" % (key * number % 11))
            producer.flush()
            producer.abort() if number % 3 == 2 else producer.commit()


def wait_until_compacted(servers: str, topic: str) -> None:
    """Wait until all segments except the active one are compacted."""
    deadline = time.monotonic() + SECONDS
    with Admin(servers) as admin:
        while True:
            rows = admin.compaction_status(topic)
            if all(row["last_run"] and row["state"] == "waiting" and not row["cleanable_bytes"] for row in rows):
                return
            assert time.monotonic() < deadline, rows
            time.sleep(0.01)
