"""Which producer id, epoch and sequence numbers a producer's batches get, and whether they may be sent yet.

`ProducerIds` is for producers without idempotence, whose batches get none. `IdempotentIds` asks any broker for an id
when the first batch waits for it, and begins a new epoch for a partition where a number is missing that nobody will
send any more (KIP-360). A transactional producer's are in transactions.py. All in the I/O thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from stratalog.client._batch import Batch
from stratalog.client._queues import PartitionQueue
from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster
from stratalog.client.errors import ClientError, error_of
from stratalog.client.producer_settings import ProducerSettings
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import HIGHEST

HIGHEST_EPOCH = 32766


class SenderOfBatches(Protocol):
    """What is asked of the sender."""

    def drain(self) -> None: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def fail(self, batch: Batch, error: ClientError) -> None: ...

    def fail_waiting(self, error: ClientError) -> None: ...

    def fail_under_way(self, error: ClientError) -> None: ...

    async def until_acknowledged(self, deadline: float) -> None: ...

    def when_acknowledged(self, callback: Callable[[], None]) -> None: ...

    async def until_answered(self, deadline: float) -> None: ...


class ProducerIds:
    producer_id = -1
    producer_epoch = -1
    attributes = 0  # of each batch, beside its codec
    transactional_id: bytes | None = None
    highest_produce = HIGHEST
    goes_on_after_gaps = False  # whether a partition that misses a number can begin a new epoch by itself

    lost: ClientError | None = None  # why nothing is sent any more, until it is None again

    sender: SenderOfBatches

    def may_send(self, queue: PartitionQueue) -> bool:  # noqa: ARG002 - others look at it
        """Whether the partition's next batch can be given its numbers."""
        return True

    def finds_out(self, batch: Batch, error: ClientError) -> bool:  # noqa: ARG002
        """The batch was refused for an epoch that is over; whether the ids take care of it from here on."""
        return False

    def failed(self, batch: Batch, error: ClientError) -> None:
        """The batch will not be sent any more."""

    async def close(self, seconds: float) -> None:
        """Nothing is sent any more after it."""


class IdempotentIds(ProducerIds):
    goes_on_after_gaps = True

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._request_timeout = settings.request_timeout_ms / 1000
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._asks = False

    def may_send(self, queue: PartitionQueue) -> bool:
        if self.producer_id < 0:
            self._ask()
            return False
        if queue.needs_new_epoch and not queue.in_flight:
            if queue.producer_epoch < HIGHEST_EPOCH:
                queue.begin_epoch(queue.producer_id, queue.producer_epoch + 1)
            elif queue.producer_id == self.producer_id:
                self.producer_id = -1
                self._ask()
                return False
            else:
                queue.begin_epoch(self.producer_id, self.producer_epoch)
        return True

    def _ask(self) -> None:
        if not self._asks:
            self._asks = True
            self.sender.spawn(self._get())

    async def _get(self) -> None:
        body = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
        failures = 0
        try:
            while True:
                try:
                    answer = await self._cluster.ask_any(ApiKey.INIT_PRODUCER_ID, body, timeout=self._request_timeout)
                    if answer.error_code != ErrorCode.none:
                        raise error_of(answer.error_code, about="InitProducerId, for an idempotent producer")
                except ClientError as error:
                    if not error.is_retriable:
                        self.sender.fail_waiting(error)
                        return
                    failures += 1
                    await asyncio.sleep(self._backoff.seconds(failures))
                else:
                    self.producer_id, self.producer_epoch = int(answer.producer_id), int(answer.producer_epoch)
                    return
        finally:
            self._asks = False
            asyncio.get_running_loop().call_soon(self.sender.drain)
