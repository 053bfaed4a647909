# Parses a fetch response in place for a consumer: versions 4 to 18, with the layout in fetch.py. Every length and count
# is compared with the bytes that are left before it is used. Records are not copied, only their positions are returned.

from stratalog.protocol._wire_fields cimport Cursor, open_cursor
from stratalog.protocol.hot_versions cimport (
    DIVERGING_EPOCH_SIZE, DIVERGING_EPOCH_TAG, FETCH_BY_ID, FETCH_FLEXIBLE, FETCH_WITH_SESSIONS,
)

from stratalog.errors import MalformedResponseError
from stratalog.protocol.fields import MOST_ELEMENTS

cdef enum:
    _SMALLEST_TOPIC = 3
    _SMALLEST_PARTITION = 22
    _ABORTED_SIZE = 16

cdef Py_ssize_t _MOST_ELEMENTS = MOST_ELEMENTS


def parse_fetch_response(body, int version):
    """Return (throttle time in ms, error code, session id, [(topic name or the 16 bytes of its id, partitions), ...]).

    A partition is (index, error code, high watermark, last stable offset, log start offset, aborted or None, start of
    the records in `body`, their end, preferred replica, diverging epoch or None). Aborted is [(producer id, first
    offset), ...].
    """
    cdef Cursor cursor = open_cursor(
        body, 0, version >= FETCH_FLEXIBLE, _MOST_ELEMENTS, MalformedResponseError, "Fetch: "
    )
    cdef bint by_id = version >= FETCH_BY_ID
    cdef Py_ssize_t topic_count, partition_count
    throttle_time = cursor.int32()
    error_code, session_id = 0, 0
    if version >= FETCH_WITH_SESSIONS:
        error_code = cursor.int16()
        session_id = cursor.int32()
    topics = []
    topic_count = cursor.nullable_count(_SMALLEST_TOPIC)
    while topic_count > 0:
        topic = cursor.topic(by_id)
        partitions = []
        partition_count = cursor.nullable_count(_SMALLEST_PARTITION)
        while partition_count > 0:
            partitions.append(_partition(cursor, version))
            partition_count -= 1
        cursor.skip_tags()
        topics.append((topic, partitions))
        topic_count -= 1
    cursor.skip_tags()
    cursor.finish()
    return throttle_time, error_code, session_id, topics


cdef _partition(Cursor cursor, int version):
    cdef Py_ssize_t size, start
    index = cursor.int32()
    error_code = cursor.int16()
    high_watermark = cursor.int64()
    last_stable_offset = cursor.int64()
    log_start_offset = cursor.int64() if version >= 5 else -1
    aborted = _aborted(cursor)
    preferred_replica = cursor.int32() if version >= 11 else -1
    size = cursor.length(False)
    if size == -1:
        size = 0
    start = cursor.position
    cursor.take(size)
    diverging = _partition_tags(cursor) if cursor.flexible else None
    return (
        index, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, start, start + size,
        preferred_replica, diverging,
    )


cdef _aborted(Cursor cursor):
    cdef Py_ssize_t count = cursor.nullable_count(_ABORTED_SIZE)
    if count <= 0:
        return None
    aborted = []
    while count > 0:
        producer_id = cursor.int64()
        first_offset = cursor.int64()
        aborted.append((producer_id, first_offset))
        cursor.skip_tags()
        count -= 1
    return aborted


cdef _partition_tags(Cursor cursor):
    """Return (epoch, end offset) where the broker's log diverges from the fetched one, or None if it does not."""
    cdef Py_ssize_t tags = cursor.varint()
    cdef Py_ssize_t tag, size, end
    diverging = None
    cursor.spend(tags)
    while tags > 0:
        tag = cursor.varint()
        size = cursor.varint()
        end = cursor.position + size
        cursor.take(size)
        if tag == DIVERGING_EPOCH_TAG:
            cursor.position -= size
            if size < DIVERGING_EPOCH_SIZE:
                raise cursor.fail(f"the diverging epoch at position {cursor.position} has {size} bytes")
            diverging = (cursor.int32(), cursor.int64())
            if diverging[1] < 0:
                diverging = None
            cursor.position = end
        tags -= 1
    return diverging
