"""The current leader of a partition, in errors of Produce and Fetch: newer clients go on there without a request for
metadata."""

from __future__ import annotations

from typing import NamedTuple


class CurrentLeader(NamedTuple):
    node_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None = None
