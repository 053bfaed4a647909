"""What goes into a log with an append, and what comes back."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Origin(Enum):
    """Who appends: a client's batches are checked record by record and may not be control batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Appended(NamedTuple):
    """Where an append went. A duplicate was in the log already, at these offsets."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    duplicate: bool = False


def writable(data: Buffer) -> bytearray | memoryview:
    """The same bytes where they may be written to, or a copy."""
    view = memoryview(data)
    return bytearray(view) if view.readonly else view.cast("B")
