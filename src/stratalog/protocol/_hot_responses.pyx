"""The responses that are sent by the ten thousand a second: Produce, versions 0 to 13, and Fetch, versions 4 to 18.

The layout is in protocol/produce.py and protocol/fetch.py, which have the types; this is their writing.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    _PRODUCE_FLEXIBLE = 9
    _FETCH_FLEXIBLE = 12
    _DIVERGING_EPOCH_TAG = 0
    _EPOCH_END_SIZE = 12  # an int32 and an int64


cdef class _Out:
    """Bytes that grow. What is taken is gone from it."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t* room(self, Py_ssize_t count) except NULL:
        """For so many bytes more, which are then part of it."""
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.size + count > self.capacity:
            capacity = max(self.size + count, 2 * self.capacity, 256)
            grown = realloc(self.data, capacity)
            if grown == NULL:
                raise MemoryError
            self.data = <uint8_t*> grown
            self.capacity = capacity
        self.size += count
        return self.data + self.size - count

    cdef int byte(self, uint8_t value) except -1:
        self.room(1)[0] = value
        return 0

    cdef int int16(self, int16_t value) except -1:
        cdef uint8_t* at = self.room(2)
        at[0] = <uint8_t> (value >> 8)
        at[1] = <uint8_t> value
        return 0

    cdef int int32(self, int32_t value) except -1:
        cdef uint8_t* at = self.room(4)
        cdef uint32_t bits = <uint32_t> value
        at[0] = bits >> 24
        at[1] = (bits >> 16) & 0xFF
        at[2] = (bits >> 8) & 0xFF
        at[3] = bits & 0xFF
        return 0

    cdef int int64(self, int64_t value) except -1:
        self.int32(<int32_t> (<uint64_t> value >> 32))
        return self.int32(<int32_t> value)

    cdef int varint(self, Py_ssize_t value) except -1:
        while value > 0x7F:
            self.byte(<uint8_t> (value & 0x7F | 0x80))
            value >>= 7
        return self.byte(<uint8_t> value)

    cdef int count(self, Py_ssize_t value, bint flexible) except -1:
        """Of an array, or the bytes of one field."""
        return self.varint(value + 1) if flexible else self.int32(<int32_t> value)

    cdef int raw(self, bytes value) except -1:
        memcpy(self.room(len(value)), <const char*> value, len(value))
        return 0

    cdef int topic(self, topic, bint flexible) except -1:
        """Its name, or the bytes of its id."""
        cdef bytes name
        if isinstance(topic, bytes):
            return self.raw(topic)
        name = (<str> topic).encode()
        if flexible:
            self.varint(len(name) + 1)
        else:
            self.int16(<int16_t> len(name))
        return self.raw(name)

    cdef int message(self, text, bint flexible) except -1:
        """A nullable string, cut where it is too long for a response."""
        cdef bytes message = None if text is None else (<str> text)[:1000].encode()
        if flexible:
            self.varint(0 if message is None else len(message) + 1)
        else:
            self.int16(-1 if message is None else <int16_t> len(message))
        return 0 if message is None else self.raw(message)

    cdef bytes take(self):
        cdef bytes taken = PyBytes_FromStringAndSize(<const char*> self.data, self.size)
        self.size = 0
        return taken


def encode_produce_response(int version, topics):
    cdef _Out out = _Out()
    cdef bint flexible = version >= _PRODUCE_FLEXIBLE
    out.count(len(topics), flexible)
    for topic, partitions in topics:
        out.topic(topic, flexible)
        out.count(len(partitions), flexible)
        for partition in partitions:
            write_produced(out, version, partition)
        if flexible:
            out.byte(0)
    if version >= 1:
        out.int32(0)  # never throttled
    if flexible:
        out.byte(0)
    return out.take()


cdef int write_produced(_Out out, int version, partition) except -1:
    index, error_code, base_offset, log_append_time, log_start_offset, error_message, record_errors = partition
    out.int32(index)
    out.int16(error_code)
    out.int64(base_offset)
    if version >= 2:
        out.int64(log_append_time)
    if version >= 5:
        out.int64(log_start_offset)
    if version < 8:
        return 0
    cdef bint flexible = version >= _PRODUCE_FLEXIBLE
    out.count(len(record_errors), flexible)
    for index, text in record_errors:
        out.int32(index)
        out.message(text, flexible)
        if flexible:
            out.byte(0)
    out.message(error_message, flexible)
    if flexible:
        out.byte(0)
    return 0


def encode_fetch_response(int version, int error_code, int session_id, topics):
    cdef _Out out = _Out()
    cdef bint flexible = version >= _FETCH_FLEXIBLE
    cdef Py_ssize_t size = 0
    cdef list pieces = []
    out.int32(0)  # never throttled
    if version >= 7:
        out.int16(error_code)
        out.int32(session_id)
    out.count(len(topics), flexible)
    for topic, partitions in topics:
        out.topic(topic, flexible)
        out.count(len(partitions), flexible)
        for partition in partitions:
            index, code, high_watermark, stable, start, aborted, records, diverging = partition
            out.int32(index)
            out.int16(code)
            out.int64(high_watermark)
            out.int64(stable)
            if version >= 5:
                out.int64(start)
            write_aborted(out, aborted, flexible)
            if version >= 11:
                out.int32(-1)  # no replica is better to read from
            length = 0 if records is None else len(records)
            out.count(length, flexible)
            if length:
                size += out.size + length
                pieces.append(out.take())
                pieces.append(records)
            if flexible:
                write_partition_tags(out, diverging)
        if flexible:
            out.byte(0)
    if flexible:
        out.byte(0)
    size += out.size
    pieces.append(out.take())
    return pieces, size


cdef int write_aborted(_Out out, aborted, bint flexible) except -1:
    if aborted is None:
        return out.byte(0) if flexible else out.int32(-1)
    out.count(len(aborted), flexible)
    for producer_id, first_offset in aborted:
        out.int64(producer_id)
        out.int64(first_offset)
        if flexible:
            out.byte(0)
    return 0


cdef int write_partition_tags(_Out out, diverging) except -1:
    if diverging is None:
        return out.byte(0)
    epoch, end_offset = diverging
    out.byte(1)
    out.byte(_DIVERGING_EPOCH_TAG)
    out.byte(_EPOCH_END_SIZE + 1)
    out.int32(epoch)
    out.int64(end_offset)
    return out.byte(0)
