# A fetch response, read in place by a consumer: versions 4 to 18, layout in fetch.py. Every length and count is checked
# against the bytes that are left before anything is made of it. Record bytes stay where they are, as positions.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from stratalog.errors import MalformedResponseError
from stratalog.protocol.limits import MOST_ELEMENTS

cdef enum:
    _FLEXIBLE = 12
    _BY_ID = 13
    _DIVERGING_EPOCH_TAG = 0
    _EPOCH_END_SIZE = 12
    _SMALLEST_TOPIC = 3
    _SMALLEST_PARTITION = 22
    _ABORTED_SIZE = 16

cdef Py_ssize_t _MOST_ELEMENTS = MOST_ELEMENTS


cdef class _Reader:
    cdef Py_buffer buffer
    cdef const uint8_t* data
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef Py_ssize_t elements  # that there may still be
    cdef bint flexible

    def __cinit__(self, body, bint flexible):
        PyObject_GetBuffer(body, &self.buffer, PyBUF_SIMPLE)
        self.data = <const uint8_t*> self.buffer.buf
        self.end = self.buffer.len
        self.elements = _MOST_ELEMENTS
        self.flexible = flexible

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef int need(self, Py_ssize_t count) except -1:
        if count < 0 or count > self.end - self.position:
            raise MalformedResponseError(
                f"Fetch: {count} bytes are announced at position {self.position} of the response, "
                f"{self.end - self.position} are left"
            )
        return 0

    cdef int16_t int16(self) except? -2:
        self.need(2)
        cdef const uint8_t* p = self.data + self.position
        self.position += 2
        return <int16_t> ((p[0] << 8) | p[1])

    cdef int32_t int32(self) except? -2:
        self.need(4)
        cdef const uint8_t* p = self.data + self.position
        self.position += 4
        return <int32_t> ((<uint32_t> p[0] << 24) | (p[1] << 16) | (p[2] << 8) | p[3])

    cdef int64_t int64(self) except? -2:
        cdef int64_t high = self.int32()
        return (high << 32) | <uint32_t> self.int32()

    cdef Py_ssize_t varint(self) except -2:
        """Unsigned, at most 32 bits."""
        cdef Py_ssize_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            self.need(1)
            byte = self.data[self.position]
            self.position += 1
            value |= <Py_ssize_t> (byte & 0x7F) << shift
            if not byte & 0x80:
                if value > 0xFFFFFFFF:
                    raise MalformedResponseError(f"Fetch: a length at position {self.position} does not fit 32 bits")
                return value
            shift += 7
            if shift > 28:
                raise MalformedResponseError(f"Fetch: a length at position {self.position} has more than five bytes")

    cdef Py_ssize_t length(self, bint short) except? -2:
        """Of a string, bytes or an array; -1 is null."""
        if self.flexible:
            return self.varint() - 1
        return self.int16() if short else self.int32()

    cdef Py_ssize_t count(self, Py_ssize_t smallest) except? -2:
        """Of an array whose elements take at least `smallest` bytes each; -1 is null."""
        cdef Py_ssize_t count = self.length(False)
        if count < -1 or count * smallest > self.end - self.position:
            raise MalformedResponseError(
                f"Fetch: an array of {count} elements at position {self.position}, "
                f"{self.end - self.position} bytes are left"
            )
        self.spend(max(count, 0))
        return count

    cdef int spend(self, Py_ssize_t count) except -1:
        self.elements -= count
        if self.elements < 0:
            raise MalformedResponseError(
                f"Fetch: more than {_MOST_ELEMENTS} elements in arrays, counted up to position {self.position}"
            )
        return 0

    cdef topic(self, bint by_id):
        """Its name, or the bytes of its id."""
        cdef Py_ssize_t size = 16 if by_id else self.length(True)
        self.need(size)
        self.position += size
        if by_id:
            return PyBytes_FromStringAndSize(<const char*> self.data + self.position - 16, 16)
        try:
            return PyUnicode_DecodeUTF8(<const char*> self.data + self.position - size, size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedResponseError(f"Fetch: the topic's name at {self.position - size} is not UTF-8") from error

    cdef int skip_tags(self) except -1:
        cdef Py_ssize_t tags, size
        if not self.flexible:
            return 0
        tags = self.varint()
        self.spend(tags)
        while tags > 0:
            self.varint()
            size = self.varint()
            self.need(size)
            self.position += size
            tags -= 1
        return 0

    cdef partition_tags(self):
        """(epoch, end offset) where the broker's log parts from what was fetched; None where it does not."""
        cdef Py_ssize_t tags = self.varint()
        cdef Py_ssize_t tag, size, behind
        diverging = None
        self.spend(tags)
        while tags > 0:
            tag = self.varint()
            size = self.varint()
            self.need(size)
            behind = self.position + size
            if tag == _DIVERGING_EPOCH_TAG:
                if size < _EPOCH_END_SIZE:
                    raise MalformedResponseError(f"Fetch: a diverging epoch of {size} bytes, at {self.position}")
                diverging = (self.int32(), self.int64())
                if diverging[1] < 0:
                    diverging = None
            self.position = behind
            tags -= 1
        return diverging


def parse_fetch_response(body, int version):
    """(throttle time in ms, error code, session id, [(topic name or the 16 bytes of its id, partitions), ...]).

    A partition: (index, error code, high watermark, last stable offset, log start offset, aborted or None, start, end of
    the records in `body`, preferred replica, diverging epoch or None). Aborted: [(producer id, first offset), ...].
    """
    cdef _Reader reader = _Reader(body, version >= _FLEXIBLE)
    cdef bint by_id = version >= _BY_ID
    cdef Py_ssize_t topic_count, partition_count
    throttle_time = reader.int32()
    error_code, session_id = 0, 0
    if version >= 7:
        error_code = reader.int16()
        session_id = reader.int32()
    topics = []
    topic_count = reader.count(_SMALLEST_TOPIC)
    while topic_count > 0:
        topic = reader.topic(by_id)
        partitions = []
        partition_count = reader.count(_SMALLEST_PARTITION)
        while partition_count > 0:
            partitions.append(_partition(reader, version))
            partition_count -= 1
        reader.skip_tags()
        topics.append((topic, partitions))
        topic_count -= 1
    reader.skip_tags()
    if reader.position != reader.end:
        raise MalformedResponseError(f"Fetch: {reader.end - reader.position} bytes too many behind the response")
    return throttle_time, error_code, session_id, topics


cdef _partition(_Reader reader, int version):
    cdef Py_ssize_t size, start
    index = reader.int32()
    error_code = reader.int16()
    high_watermark = reader.int64()
    last_stable_offset = reader.int64()
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = _aborted(reader)
    preferred_replica = reader.int32() if version >= 11 else -1
    size = reader.length(False)
    if size == -1:
        size = 0
    reader.need(size)
    start = reader.position
    reader.position += size
    diverging = reader.partition_tags() if reader.flexible else None
    return (
        index, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, start, start + size,
        preferred_replica, diverging,
    )


cdef _aborted(_Reader reader):
    cdef Py_ssize_t count = reader.count(_ABORTED_SIZE)
    if count <= 0:
        return None
    aborted = []
    while count > 0:
        producer_id = reader.int64()
        first_offset = reader.int64()
        aborted.append((producer_id, first_offset))
        reader.skip_tags()
        count -= 1
    return aborted
