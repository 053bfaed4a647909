"""Parses the hot requests in place: Produce and Fetch, of which a broker gets tens of thousands per second.

Every length and count is compared with the bytes that are left before it is used. Strings become Python objects, but
records are not copied: only their positions in the frame are returned. The number of topics and partitions is limited,
like the elements of every request.
"""

from libc.stdint cimport uint8_t

from stratalog.protocol._wire_fields cimport Cursor, open_cursor
from stratalog.protocol.hot_versions cimport (
    FETCH_BY_ID, FETCH_FLEXIBLE, FETCH_WITH_SESSIONS, PRODUCE_BY_ID, PRODUCE_FLEXIBLE, PRODUCE_WITH_ZSTD,
)
from stratalog.records._varint cimport load32
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION, BATCH_LENGTH_POSITION, CODEC_MASK, CODEC_ZSTD, CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD,
    MAGIC_POSITION, TRANSACTIONAL_BIT,
)

from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import VERSIONS
from stratalog.protocol.fields import MOST_ELEMENTS

FINE, NO_RECORDS, TOO_SMALL, OLD_MAGIC, UNKNOWN_MAGIC, SEVERAL_BATCHES, TRANSACTIONAL, ZSTD_TOO_EARLY = range(8)

cdef enum:
    _KEYS = 128
    _ATTRIBUTES_LOW_BYTE = ATTRIBUTES_POSITION + 1
    _SMALLEST_TOPIC = 3
    _SMALLEST_PRODUCE_PARTITION = 5
    _SMALLEST_FETCH_PARTITION = 16
    _REPLICA_STATE_TAG = 1
    _FIRST_WITH_REPLICA_STATE = 15

cdef int _first_flexible[_KEYS]
cdef int _highest[_KEYS]
for _key in range(_KEYS):
    _first_flexible[_key] = VERSIONS[_key].first_flexible if _key in VERSIONS else 0
    _highest[_key] = VERSIONS[_key].highest if _key in VERSIONS else -1

cdef Py_ssize_t _MOST_ELEMENTS = MOST_ELEMENTS


cdef inline Cursor _request(frame, Py_ssize_t position, bint flexible):
    return open_cursor(frame, position, flexible, _MOST_ELEMENTS, MalformedRequestError, "")


def parse_request_header(frame):
    """Return (API key, version, correlation id, client id, position after the header).

    Tagged fields are skipped in versions that have them. For an unknown API or version, that can't be determined."""
    cdef Cursor cursor = _request(frame, 0, False)
    cdef int key = cursor.int16()
    cdef int version = cursor.int16()
    correlation_id = cursor.int32()
    client_id = cursor.nullable_string(NULL)
    if 0 <= key < _KEYS and _first_flexible[key] <= version <= _highest[key]:
        cursor.flexible = True
        cursor.skip_tags()
    return key, version, correlation_id, client_id, cursor.position


def batch_fault(frame, Py_ssize_t start, Py_ssize_t end, int version):
    """Return the first rule of Kafka's for records in requests that they break, beyond those of the log; FINE if none.
    TRANSACTIONAL comes last, because it is no fault if the producer has an open transaction."""
    cdef Cursor cursor = _request(frame, 0, False)
    cdef const uint8_t *batch
    cdef Py_ssize_t size = end - start
    if start < 0 or size == 0:
        return NO_RECORDS
    if size < HEADER_SIZE:
        return TOO_SMALL
    cursor.take(end)
    batch = cursor.data + start
    if batch[MAGIC_POSITION] != CURRENT_MAGIC:
        return OLD_MAGIC if batch[MAGIC_POSITION] < CURRENT_MAGIC else UNKNOWN_MAGIC
    if <int> load32(batch + BATCH_LENGTH_POSITION) + <long long> LOG_OVERHEAD < size:
        return SEVERAL_BATCHES
    if batch[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == CODEC_ZSTD and version < PRODUCE_WITH_ZSTD:
        return ZSTD_TOO_EARLY
    if batch[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT:
        return TRANSACTIONAL
    return FINE


def parse_produce(frame, Py_ssize_t position, int version):
    """Return (transactional id, acks, timeout, [(topic name or the 16 bytes of its id, partitions), ...]).

    A partition is (index, start, end): its records are frame[start:end], and start is -1 if they are null.
    """
    cdef Cursor cursor = _request(frame, position, version >= PRODUCE_FLEXIBLE)
    cdef Py_ssize_t topic, partition, partition_count, size, start
    cdef bint by_id = version >= PRODUCE_BY_ID
    transactional_id = cursor.nullable_string(NULL) if version >= 3 else None
    acks = cursor.int16()
    timeout = cursor.int32()
    cdef Py_ssize_t topic_count = cursor.count(_SMALLEST_TOPIC)
    topics = []
    for topic in range(topic_count):
        name = cursor.topic(by_id)
        partition_count = cursor.count(_SMALLEST_PRODUCE_PARTITION)
        partitions = []
        for partition in range(partition_count):
            index = cursor.int32()
            size = cursor.length(False)
            start = -1
            if size != -1:
                start = cursor.position
                cursor.take(size)
            cursor.skip_tags()
            partitions.append((index, start, start + size))
        cursor.skip_tags()
        topics.append((name, partitions))
    cursor.skip_tags()
    cursor.finish()
    return transactional_id, acks, timeout, topics


def parse_fetch(frame, Py_ssize_t position, int version):
    """Return (replica, max wait, min bytes, max bytes, isolation level, session id, session epoch, topics, forgotten,
    rack).

    The replica is (node id, broker epoch) of a follower, or None. Topics are
    [(name or id, [(partition, current leader epoch, offset, last fetched epoch, max bytes, log start offset), ...])].
    Only followers give a log start offset; else it is -1. Forgotten topics are [(name or id, [partition, ...]), ...].
    """
    cdef Cursor cursor = _request(frame, position, version >= FETCH_FLEXIBLE)
    cdef Py_ssize_t topic, partition, partition_count, forgotten_count
    cdef bint by_id = version >= FETCH_BY_ID
    replica = None
    rack = ""
    if version < _FIRST_WITH_REPLICA_STATE:
        replica = _replica(cursor.int32(), -1)
    max_wait = cursor.int32()
    min_bytes = cursor.int32()
    max_bytes = cursor.int32()
    isolation_level = cursor.int8()
    session_id, session_epoch = 0, -1
    if version >= FETCH_WITH_SESSIONS:
        session_id = cursor.int32()
        session_epoch = cursor.int32()
    cdef Py_ssize_t topic_count = cursor.count(_SMALLEST_TOPIC)
    topics = []
    for topic in range(topic_count):
        name = cursor.topic(by_id)
        partition_count = cursor.count(_SMALLEST_FETCH_PARTITION)
        partitions = []
        for partition in range(partition_count):
            index = cursor.int32()
            leader_epoch = cursor.int32() if version >= 9 else -1
            offset = cursor.int64()
            last_epoch = cursor.int32() if version >= FETCH_FLEXIBLE else -1
            log_start = cursor.int64() if version >= 5 else -1
            size = cursor.int32()
            cursor.skip_tags()
            partitions.append((index, leader_epoch, offset, last_epoch, size, log_start))
        cursor.skip_tags()
        topics.append((name, partitions))
    forgotten = []
    if version >= FETCH_WITH_SESSIONS:
        forgotten_count = cursor.count(_SMALLEST_TOPIC)
        for topic in range(forgotten_count):
            name = cursor.topic(by_id)
            partition_count = cursor.count(4)
            forgotten.append((name, [cursor.int32() for partition in range(partition_count)]))
            cursor.skip_tags()
    if version >= 11:
        rack = cursor.nullable_string(NULL)
    if cursor.flexible:
        replica = _fetch_tags(cursor, version, replica)
    cursor.finish()
    return replica, max_wait, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topics, forgotten, rack


cdef _replica(node_id, epoch):
    return None if node_id < 0 else (node_id, epoch)


cdef _fetch_tags(Cursor cursor, int version, replica):
    """Return the replica, which from version 15 on is in a tagged field."""
    cdef Py_ssize_t tags = cursor.varint()
    cdef Py_ssize_t tag, size, end
    cursor.spend(tags)
    while tags > 0:
        tag = cursor.varint()
        size = cursor.varint()
        end = cursor.position + size
        cursor.take(size)
        if tag == _REPLICA_STATE_TAG and version >= _FIRST_WITH_REPLICA_STATE:
            cursor.position -= size
            if size < 12:
                raise cursor.fail(f"the replica state at position {cursor.position} has {size} bytes")
            replica = _replica(cursor.int32(), cursor.int64())
            cursor.position = end
        tags -= 1
    return replica
