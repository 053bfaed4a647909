"""Batches that were compressed again for compression.type, checked by Kafka's log dumper."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.records._records import Record
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.storage import LogConfig, LogDirectory
from tests.compat.kafka import dump_log_segments, segment_files

pytestmark = pytest.mark.compat

TIME = 1_600_000_000_000
TYPES = {"uncompressed": "none", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}


def records_of(number: int) -> list[Record]:
    return [
        Record(
            timestamp=TIME + number + i, key=b"key %d" % i, value=b"%d of %d " % (i, number) * 20, headers=[("h", b"v")]
        )
        for i in range(1 + number % 9)
    ]


def test_dumper_reads_batches_recompressed_from_any_codec_to_any(tmp_path: Path) -> None:
    with LogDirectory.open(tmp_path, background=False) as directory:
        for name in TYPES:
            log = directory.log(name, 0, LogConfig(compression_type=name, segment_index_bytes=4096))
            for number, codec in enumerate([*Codec, *Codec]):
                producer = {"producer_id": 5, "producer_epoch": 1, "base_sequence": log.log_end_offset}
                log.append(build_batch(records_of(number), codec=codec, **producer))  # type: ignore[arg-type]
    files = [path for name in TYPES for path in segment_files(tmp_path / f"{name}-0")]
    dump = dump_log_segments(files, "--deep-iteration", "--print-data-log")
    assert dump.complaints == []
    expected = [record for number in range(2 * len(Codec)) for record in records_of(number)]
    for name, codec_name in TYPES.items():
        (log_file,) = (tmp_path / f"{name}-0").glob("*.log")
        batches, seen = dump[log_file].batches, dump[log_file].records
        assert {batch.header["compresscodec"] for batch in batches} == {codec_name}
        assert {batch.header["producerId"] for batch in batches} == {"5"}
        assert [(one.timestamp, one.key, one.value) for one in seen] == [
            (one.timestamp, one.key, one.value) for one in expected
        ]
