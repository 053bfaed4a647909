import selectors

from stratalog.client._batch import Batch
from stratalog.client.producer_ids import ProducerIds
from stratalog.client.sender import Broker, Sender
from stratalog.net.broker_connection import BrokerConnection

class ProduceRequest:
    def __new__(
        cls, broker: Broker, connection: BrokerConnection, version: int, batches: list[Batch]
    ) -> ProduceRequest: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def connection(self) -> BrokerConnection: ...
    @property
    def version(self) -> int: ...
    @property
    def batches(self) -> list[Batch]: ...

class DirectPath:
    io_thread_waits: bool
    def __new__(cls, acks: int, timeout_ms: int, delivery_timeout: float, is_idempotent: bool) -> DirectPath: ...
    @property
    def is_stuck(self) -> bool: ...
    def open(
        self,
        sender: Sender,
        ids: ProducerIds,
        attributes: int,
        node_id: int,
        broker: Broker,
        connection: BrokerConnection,
        version: int,
    ) -> None: ...
    def close(self) -> None: ...
    def write_on(self) -> None: ...

class WatchedSelector(selectors.DefaultSelector):
    def __init__(self, path: DirectPath) -> None: ...
