from collections.abc import Callable
from typing import Any

from stratalog.errors import ClientError
from stratalog.net.broker_connection import BrokerConnection

def send_small(fd: int, data: bytes) -> int: ...
def is_idle(connection: BrokerConnection, deadline: float) -> bool: ...
def send_now(
    connection: BrokerConnection,
    fd: int,
    kind: type[tuple[Any, ...]],
    key: int,
    version: int,
    flexible: bool,
    client_id: bytes,
    body: bytes,
    now: float,
    deadline: float,
    answered: Callable[[memoryview | None, ClientError | None], None],
) -> bool: ...
