"""A program that test_decode_avro.py runs with the path of spark-avro's jar. It decodes values and prints JSON."""

from __future__ import annotations

import json
import struct
import sys

import pyarrow as pa
from pyspark.sql import DataFrame

from stratalog.spark import from_stratalog, session

FIRST = json.dumps({"type": "record", "name": "Drink", "fields": [{"name": "name", "type": "string"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "Drink",
        "fields": [{"name": "name", "type": "string"}, {"name": "cups", "type": ["null", "long"], "default": None}],
    }
)
TEA, TWO_TEAS = b"\x06tea", b"\x06tea\x02\x04"  # by Avro's specification: zigzag lengths, the union's branch


def framed(number: int, value: bytes) -> bytes:
    return b"\x00" + struct.pack(">i", number) + value


def decoded(df: DataFrame) -> list[list[object]]:
    return [[_plain(row["value"]), row["bad"] is not None] for row in df.collect()]


def _plain(value: object) -> object:
    return value.asDict() if hasattr(value, "asDict") else value


def main(jar: str) -> None:
    spark = session("local[1]", **{"spark.jars": jar, "spark.driver.memory": "1g"})

    def topic(*values: bytes | None) -> DataFrame:
        return spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary())}))

    mixed = topic(framed(7, TEA), framed(9, TWO_TEAS), framed(8, TEA), TEA, None)
    by_id = {7: FIRST, 9: SECOND}
    try:
        from_stratalog(mixed, "avro", schemas=by_id, mode="FAILFAST").collect()
        failure = "nothing failed"
    except Exception as error:
        failure = str(error)
    as_first = from_stratalog(mixed, "avro", FIRST, schemas=by_id).collect()
    found = {
        "one schema": decoded(from_stratalog(topic(TEA, None, b"\xff"), "avro", FIRST, errors="bad")),
        "by id": decoded(from_stratalog(mixed, "avro", schemas=by_id, errors="bad")),
        "by id, read as the first": [_plain(row["value"]) for row in as_first],
        "failfast": failure,
        "no record": decoded(from_stratalog(topic(TEA, b"\xff"), "avro", '"string"', errors="bad")),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
