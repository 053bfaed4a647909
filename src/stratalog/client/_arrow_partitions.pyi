from typing_extensions import Buffer

from stratalog.records._column_encoder import BinaryColumn

def sort_rows(
    keys: BinaryColumn | None, named: Buffer | None, rows: int, partitions: int
) -> tuple[bytearray, list[int]]: ...
