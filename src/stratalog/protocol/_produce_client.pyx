# Produce for a client: writes the request around batches, which it does not copy, and parses the response in place.
# Versions 3 to 12, with the layouts in produce.py. Every length and count of a response is compared with the bytes that
# are left before it is used.

from cpython.bytearray cimport PyByteArray_AS_STRING

from stratalog.protocol._wire_fields cimport Cursor, Output, open_cursor
from stratalog.protocol.hot_versions cimport PRODUCE_FLEXIBLE

from stratalog.errors import MalformedResponseError
from stratalog.protocol.fields import MOST_RESPONSE_ELEMENTS

cdef enum:
    _WORTH_A_PIECE = 2048   # bytes; a smaller batch is copied into the piece around it
    _SMALLEST_TOPIC = 3
    _SMALLEST_PARTITION = 14
    _SMALLEST_RECORD_ERROR = 5

cdef Py_ssize_t _MOST_ELEMENTS = MOST_RESPONSE_ELEMENTS


def encode_produce_request(int version, int acks, int timeout_ms, dict topics not None, bytes transactional_id=None):
    """Return the pieces of a request's body. `topics` is {name: [(partition, batch), ...], ...}."""
    cdef Output out = Output.__new__(Output)
    cdef list pieces = []
    cdef bytearray batch
    cdef Py_ssize_t size
    out.flexible = version >= PRODUCE_FLEXIBLE
    out.string(transactional_id)
    out.int16(acks)
    out.int32(timeout_ms)
    out.count(len(topics))
    for topic, partitions in topics.items():
        out.string((<str> topic).encode())
        out.count(len(partitions))
        for partition, records in partitions:
            batch = records
            size = len(batch)
            out.int32(partition)
            out.count(size)
            if size < _WORTH_A_PIECE:
                out.raw(PyByteArray_AS_STRING(batch), size)
            else:
                pieces.append(out.take())
                pieces.append(batch)
            out.tags()
        out.tags()
    out.tags()
    if out.size:
        pieces.append(out.take())
    return pieces


def decode_produce_response(int version, body):
    """Return (throttle time in ms, {(topic, partition): (error code, base offset, log append time, message), ...})."""
    cdef Cursor cursor = open_cursor(
        body, 0, version >= PRODUCE_FLEXIBLE, _MOST_ELEMENTS, MalformedResponseError, "Produce: "
    )
    cdef dict partitions = {}
    cdef Py_ssize_t topic_count = cursor.nullable_count(_SMALLEST_TOPIC)
    cdef Py_ssize_t partition_count, topic, partition
    cdef int number, code
    cdef long long base_offset, append_time
    for topic in range(topic_count):
        name = cursor.nullable_string(b"replace")
        partition_count = cursor.nullable_count(_SMALLEST_PARTITION)
        for partition in range(partition_count):
            number = cursor.int32()
            code = cursor.int16()
            base_offset = cursor.int64()
            append_time = cursor.int64()
            if version >= 5:
                cursor.int64()  # log start offset
            message = _error_message(cursor) if version >= 8 else None
            cursor.skip_tags()
            partitions[name, number] = (code, base_offset, append_time, message)
        cursor.skip_tags()
    throttle = cursor.int32()
    cursor.skip_tags()
    return throttle, partitions


cdef _error_message(Cursor cursor):
    """Return the broker's message, and the first of its messages about records."""
    cdef Py_ssize_t record
    cdef Py_ssize_t count = cursor.nullable_count(_SMALLEST_RECORD_ERROR)
    first = None
    for record in range(count):
        index = cursor.int32()
        detail = cursor.nullable_string(b"replace")
        cursor.skip_tags()
        if first is None:
            first = f"record {index} of the batch: {detail}" if detail else f"record {index} of the batch"
    message = cursor.nullable_string(b"replace")
    if first is None:
        return message
    return f"{message} ({first})" if message else first
