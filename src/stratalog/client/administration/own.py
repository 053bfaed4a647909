"""Requests that only a Stratalog broker serves: its own API (key 20000), with JSON in both directions."""

from __future__ import annotations

import base64
import json
from typing import Any

from stratalog.client.cluster import Cluster
from stratalog.client.errors import MalformedResponseError, error_of
from stratalog.protocol.api_keys import OwnApiKey


async def compaction_status(cluster: Cluster, topic: str | None, timeout: float | None) -> list[dict[str, Any]]:
    return await ask(cluster, "compaction.status", {"topic": topic}, timeout)


async def explain_compaction(
    cluster: Cluster, topic: str, key: bytes, partition: int | None, timeout: float | None
) -> list[dict[str, Any]]:
    arguments = {"topic": topic, "key": base64.b64encode(key).decode(), "partition": partition}
    return await ask(cluster, "compaction.explain", arguments, timeout)


async def compaction_dry_run(
    cluster: Cluster, topic: str, partition: int | None, timeout: float | None
) -> list[dict[str, Any]]:
    return await ask(cluster, "compaction.dry_run", {"topic": topic, "partition": partition}, timeout)


async def ask(cluster: Cluster, method: str, arguments: dict[str, Any], timeout: float | None) -> list[dict[str, Any]]:
    request = json.dumps({"method": method, **arguments}).encode()
    response = await cluster.ask_own(OwnApiKey.STRATALOG, request, timeout=timeout)
    try:
        reply = json.loads(bytes(response))
        error = reply.get("error")
        rows = [] if error is not None else [dict(row) for row in reply["result"]]
        code, message = (0, "") if error is None else (int(error["code"]), str(error["message"]))
    except (ValueError, TypeError, KeyError, AttributeError) as broken:
        raise MalformedResponseError(f"the response to {method} can't be read: {broken!r}") from broken
    if error is not None:
        raise error_of(code, message, about=str(arguments.get("topic") or method))
    return rows
