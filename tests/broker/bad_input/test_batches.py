"""Record batches that the log must refuse: damaged, forged, or with a huge decompressed size."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from typing import Any

import cramjam
import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records._crc32c import crc32c
from stratalog.records.builder import build_batch
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.healthy import topic
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import request_frame

TOPIC = "attacked"
_LENGTH, _MAGIC, _CRC, _ATTRIBUTES, _LAST_DELTA = 8, 16, 17, 21, 23
_PRODUCER_ID, _EPOCH, _COUNT, _RECORDS = 43, 51, 57, 61
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4


@pytest.fixture(scope="module")
def written(attacked: Attacked) -> Iterator[RawClient]:
    with attacked.client() as client:
        client.request(ApiKey.CREATE_TOPICS, {"topics": [topic(TOPIC, 1)], "timeout": 30_000})
        yield client


@pytest.fixture(autouse=True)
def nothing_is_written(written: RawClient) -> Iterator[None]:
    yield
    asked = {"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}
    assert (
        written.request(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": [asked]}).topics[0].partitions[0].offset == 0
    )


def produced(client: RawClient, records: bytes | None, *, version: int = 9, **given: Any) -> Any:
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": records}]} | given.pop("topic", {})
    request = {"acks": -1, "timeout": 10_000, "topic_data": [data]} | given
    return client.request(ApiKey.PRODUCE, request, version).responses[0].partition_responses[0]


def batch(*values: bytes, **fields: Any) -> bytearray:
    return bytearray(build_batch([(b"key", value) for value in values or (b"value",)], **fields))


def sealed(data: bytearray) -> bytes:
    """Correct the checksum, so that the broker has to detect the damage itself."""
    struct.pack_into(">I", data, _CRC, crc32c(bytes(data[_ATTRIBUTES:])))
    return bytes(data)


def forged(format: str, position: int, value: int, *values: bytes, **fields: Any) -> bytes:
    data = batch(*values, **fields)
    struct.pack_into(format, data, position, value)
    return sealed(data)


def test_a_bad_checksum_is_a_corrupt_message(written: RawClient) -> None:
    for position in (_CRC, _ATTRIBUTES, _RECORDS + 3):
        data = batch()
        data[position] ^= 0x20
        assert produced(written, bytes(data)).error_code == ErrorCode.corrupt_message


@pytest.mark.parametrize("magic", [0, 1, 3, 127, -1])
def test_another_magic_than_2_is_refused(written: RawClient, magic: int) -> None:
    expected = ErrorCode.invalid_record if magic in (0, 1) else ErrorCode.corrupt_message
    assert produced(written, forged(">b", _MAGIC, magic)).error_code == expected


@pytest.mark.parametrize("count", [0, -1, 1, 3, 2**31 - 1, -(2**31)])
def test_a_wrong_count_of_records_is_refused(written: RawClient, count: int) -> None:
    answer = produced(written, forged(">i", _COUNT, count, b"one", b"two"))
    assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("delta", [0, 2, -1, 2**31 - 1, -(2**31)])
def test_a_last_offset_that_does_not_fit_the_count_is_refused(written: RawClient, delta: int) -> None:
    answer = produced(written, forged(">i", _LAST_DELTA, delta, b"one", b"two"))
    assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("length", [0, -1, 10, 48, 2**31 - 1, -(2**31), 10**6])
def test_a_wrong_length_is_refused(written: RawClient, length: int) -> None:
    answer = produced(written, forged(">i", _LENGTH, length))
    assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


def test_a_truncated_batch_is_refused(written: RawClient) -> None:
    data = bytes(batch(b"a value of some bytes"))
    for cut in range(len(data)):
        answer = produced(written, data[:cut])
        assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message), cut


def test_no_records_and_two_batches_are_refused(written: RawClient) -> None:
    one = bytes(batch())
    for records in (None, b"", one + one, one + b"x"):
        assert produced(written, records).error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("damage", [b"\xff" * 5, b"\x00", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x02\x00"])
def test_a_record_whose_inner_lengths_are_wrong_is_refused(written: RawClient, damage: bytes) -> None:
    data = batch(b"a value that is long enough to be overwritten")
    data[_RECORDS : _RECORDS + len(damage)] = damage
    answer = produced(written, sealed(data))
    assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


def test_a_client_can_not_write_control_batches(written: RawClient) -> None:
    for attributes in (0x20, 0x30):
        answer = produced(written, forged(">h", _ATTRIBUTES, attributes))
        assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.transactional_id_authorization_failed)


def test_batch_of_an_unknown_transaction_is_refused(written: RawClient) -> None:
    transactional = forged(">h", _ATTRIBUTES, 0x10, producer_id=5, producer_epoch=0, base_sequence=0)
    unnamed = ErrorCode.transactional_id_authorization_failed
    assert produced(written, transactional).error_code == unnamed
    unknown = ErrorCode.invalid_producer_id_mapping
    assert produced(written, transactional, transactional_id="mine").error_code == unknown


@pytest.mark.parametrize("attributes", [5, 6, 7])
def test_an_unknown_codec_is_refused(written: RawClient, attributes: int) -> None:
    answer = produced(written, forged(">h", _ATTRIBUTES, attributes))
    assert answer.error_code in (ErrorCode.unsupported_compression_type, ErrorCode.corrupt_message)


@pytest.mark.parametrize("producer_id", [0, 7, 2**63 - 1])
def test_a_producer_without_a_sequence_is_refused(written: RawClient, producer_id: int) -> None:
    answer = produced(written, forged(">q", _PRODUCER_ID, producer_id))
    assert answer.error_code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("epoch", [-1, -(2**15)])
def test_a_producer_without_an_epoch_is_refused(written: RawClient, epoch: int) -> None:
    data = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    struct.pack_into(">h", data, _EPOCH, epoch)
    assert produced(written, sealed(data)).error_code != ErrorCode.none


@pytest.mark.parametrize("acks", [7, 2, -2, 2**15 - 1, -(2**15)])
def test_invalid_acks_are_refused(written: RawClient, acks: int) -> None:
    assert produced(written, bytes(batch()), acks=acks).error_code == ErrorCode.invalid_required_acks


def test_clients_can_not_write_to_consumer_offsets(written: RawClient) -> None:
    answer = produced(written, bytes(batch()), topic={"name": "__consumer_offsets"})
    assert answer.error_code == ErrorCode.invalid_topic_exception


def test_producing_does_not_create_topics_or_partitions(written: RawClient) -> None:
    for named in ({"name": "no-such-topic"}, {"partition_data": [{"index": 1, "records": bytes(batch())}]}):
        answer = produced(written, bytes(batch()), topic=named)
        assert answer.error_code == ErrorCode.unknown_topic_or_partition
    for index in (-1, 2**31 - 1, -(2**31)):
        answer = produced(written, None, topic={"partition_data": [{"index": index, "records": bytes(batch())}]})
        assert answer.error_code == ErrorCode.unknown_topic_or_partition


def test_a_batch_larger_than_the_topic_allows_is_refused(
    attacked: Attacked, peak_memory: PeakMemory, written: RawClient
) -> None:
    peak_memory.reset()
    answer = produced(written, bytes(batch(b"x" * 30 * MB)))
    assert answer.error_code == ErrorCode.message_too_large
    peak_memory.check(100 * MB)


# Decompression bombs

_DECOMPRESSED = 2000 * MB


def _bomb(codec: int) -> bytes:
    """Return a batch of a few kilobytes or megabytes whose decompressed size is two gigabytes."""
    if codec == _GZIP:
        piece = gzip.compress(b"\0" * 100 * MB, 9)
        data = piece * (_DECOMPRESSED // (100 * MB))  # gzip reads concatenated members as one stream
    elif codec == _SNAPPY:
        data = (
            b"\x80\x80\x80\xe8\x07" + b"\x00\x00" + b"\xfe\x01\x00" * 200_000
        )  # a header with that size, and the first data
    elif codec == _LZ4:
        piece = bytes(cramjam.lz4.compress(b"\0" * 100 * MB))
        data = piece * 2
    else:
        data = bytes(cramjam.zstd.compress(b"\0" * (_DECOMPRESSED // 4), 3)) * 4
    out = batch()[:_RECORDS] + data
    struct.pack_into(">i", out, _LENGTH, len(out) - 12)
    struct.pack_into(">h", out, _ATTRIBUTES, codec)
    return sealed(out)


@pytest.mark.parametrize("codec", [_GZIP, _SNAPPY, _LZ4, _ZSTD])
def test_a_decompression_bomb_is_refused(
    attacked: Attacked, peak_memory: PeakMemory, written: RawClient, codec: int
) -> None:
    written.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configs": [{"name": "max.message.bytes", "config_operation": 0, "value": "100000000"}],
                }
            ]
        },
    )
    bomb = _bomb(codec)
    assert len(bomb) < 20 * MB
    peak_memory.reset()
    answer = produced(written, bomb)
    assert answer.error_code in (
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
    )
    peak_memory.check(300 * MB)


def test_zstd_is_refused_in_versions_that_do_not_know_it(written: RawClient) -> None:
    answer = produced(written, bytes(batch(codec="zstd")), version=6)
    assert answer.error_code == ErrorCode.unsupported_compression_type


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_without_batches_get_an_error(client: RawClient, version: int) -> None:
    topic_data = b"\0\0\0\1\0\x08attacked\0\0\0\1" + b"\0\0\0\0" + struct.pack(">i", 30) + b"\0" * 30
    header = struct.pack(">hhih", 0, version, 3, -1)
    body = header + struct.pack(">hi", 1, 1000) + topic_data
    client.send(struct.pack(">i", len(body)) + body)
    assert client.receive()[: 4 + 4 + 10 + 4 + 4 + 2].endswith(struct.pack(">h", ErrorCode.unsupported_version))


@pytest.mark.parametrize("records", [b"", b"x" * 100, forged(">i", _COUNT, 7)], ids=["none", "no batch", "a bad one"])
def test_with_acks_0_a_refused_batch_closes_the_connection(attacked: Attacked, records: bytes) -> None:
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}
    with attacked.client() as client:
        assert client.is_refused(request_frame(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": [data]}))
