"""The producer id and epoch of a producer's batches, and the decision whether a batch may be sent yet.

`BatchIds` is for producers without idempotence: their batches have none. `IdempotentIds` gets a producer id from any
broker for the first batch, and begins a new producer epoch for a partition when a sequence number will never be sent
(KIP-360). The ids of transactional producers are in transactions.py. All methods run in the I/O thread.
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
    """The methods of the sender that the ids call."""

    def drain(self) -> None: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def fail(self, batch: Batch, error: ClientError) -> None: ...

    def fail_waiting(self, error: ClientError) -> None: ...

    def fail_in_flight(self, error: ClientError) -> None: ...

    async def wait_for_acknowledgements(self, deadline: float) -> None: ...

    def call_when_acknowledged(self, callback: Callable[[], None]) -> None: ...

    async def wait_for_responses(self, deadline: float) -> None: ...


class BatchIds:
    """The ids of a producer without idempotence, and the interface of the others."""

    producer_id = -1
    producer_epoch = -1
    attributes = 0  # of each batch, in addition to its codec
    transactional_id: bytes | None = None
    highest_produce = HIGHEST
    bumps_epoch_after_gaps = False  # whether a partition with a missing sequence number can begin a new epoch by itself

    lost: ClientError | None = None  # while it is set, no batch is sent, and batches fail with it

    sender: SenderOfBatches

    def may_send(self, queue: PartitionQueue) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether the partition's next batch can get its ids and sequence number now."""
        return True

    def defers_failure(self, batch: Batch, error: ClientError) -> bool:  # noqa: ARG002
        """Return whether the ids will complete this batch, which a broker has refused because of its producer epoch."""
        return False

    def failed(self, batch: Batch, error: ClientError) -> None:
        """Handle a batch that will not be sent again."""

    async def close(self, seconds: float) -> None:
        """Handle the end: nothing is sent any more afterwards."""


class IdempotentIds(BatchIds):
    """The ids of an idempotent producer without transactions."""

    bumps_epoch_after_gaps = True

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._request_timeout = settings.request_timeout_ms / 1000
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._is_requesting = False

    def may_send(self, queue: PartitionQueue) -> bool:
        if self.producer_id < 0:
            self._request()
            return False
        if queue.needs_new_epoch and not queue.in_flight:
            if queue.producer_epoch < HIGHEST_EPOCH:
                queue.begin_epoch(queue.producer_id, queue.producer_epoch + 1)
            elif queue.producer_id == self.producer_id:
                self.producer_id = -1
                self._request()
                return False
            else:
                queue.begin_epoch(self.producer_id, self.producer_epoch)
        return True

    def _request(self) -> None:
        if not self._is_requesting:
            self._is_requesting = True
            self.sender.spawn(self._initialize())

    async def _initialize(self) -> None:
        body = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
        failures = 0
        try:
            while True:
                try:
                    response = await self._cluster.ask_any(ApiKey.INIT_PRODUCER_ID, body, timeout=self._request_timeout)
                    if response.error_code != ErrorCode.none:
                        raise error_of(response.error_code, about="InitProducerId, for an idempotent producer")
                except ClientError as error:
                    if not error.is_retriable:
                        self.sender.fail_waiting(error)
                        return
                    failures += 1
                    await asyncio.sleep(self._backoff.seconds(failures))
                else:
                    self.producer_id, self.producer_epoch = int(response.producer_id), int(response.producer_epoch)
                    return
        finally:
            self._is_requesting = False
            asyncio.get_running_loop().call_soon(self.sender.drain)
