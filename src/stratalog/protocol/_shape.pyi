from enum import IntEnum

from typing_extensions import Buffer

class Operation(IntEnum):
    FIXED = 0
    STRING = 1
    BYTES = 2
    COMPACT = 3
    ARRAY = 4
    COMPACT_ARRAY = 5
    NULLABLE = 6
    TAGS = 7

def check_shape(frame: Buffer, shape: Buffer, most_elements: int) -> memoryview | None: ...
