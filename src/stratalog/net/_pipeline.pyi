from collections import deque
from collections.abc import Callable

from stratalog.errors import ClientError
from stratalog.protocol.api_keys import ApiKey, OwnApiKey

Answered = Callable[[memoryview | None, ClientError | None], None]

def send_small(fd: int, data: bytes) -> int: ...

class InFlight:
    correlation_id: int
    flexible: bool
    deadline: float
    answered: Answered
    key: ApiKey | OwnApiKey
    version: int
    @property
    def what(self) -> str: ...

class Pipeline:
    timer_at: float
    last_used: float
    def __new__(cls, fd: int, client_id: bytes, correlation_id: int = 0) -> Pipeline: ...
    @property
    def in_flight(self) -> deque[InFlight]: ...
    @property
    def out(self) -> deque[memoryview]: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> list[InFlight]: ...
    def number(self) -> int: ...
    def expect(
        self, flexible: bool, deadline: float, answered: Answered, key: ApiKey | OwnApiKey, version: int
    ) -> int: ...
    def is_idle(self, deadline: float) -> bool: ...
    def send_now(
        self,
        key: ApiKey | OwnApiKey,
        version: int,
        flexible: bool,
        body: bytes,
        now: float,
        deadline: float,
        answered: Answered,
    ) -> bool: ...
