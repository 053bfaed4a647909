# Produce as a client has it: the request's bytes around batches that are sent where they lie, and the response, read in place.
# Versions 3 to 12; the layouts are in produce_client.py. Every length and count of a response is checked against the bytes that
# are left before anything is made of it.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from stratalog.records._varint cimport load16, load32, load64

from struct import Struct

from stratalog.errors import MalformedResponseError
from stratalog.protocol.limits import MOST_ANSWERED_ELEMENTS

cdef enum:
    _FLEXIBLE = 9
    _WORTH_A_PIECE = 2048   # bytes: less is copied into the piece around it
    _SMALLEST_TOPIC = 3
    _SMALLEST_PARTITION = 14
    _SMALLEST_RECORD_ERROR = 5

cdef Py_ssize_t _MOST_ELEMENTS = MOST_ANSWERED_ELEMENTS
_INT32 = Struct(">i")
_BEGINNING = Struct(">hi")
_START = Struct(">hhi")


cdef int _varint(bytearray out, Py_ssize_t value) except -1:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return 0


cdef int _count(bytearray out, Py_ssize_t count, bint flexible) except -1:
    if flexible:
        return _varint(out, count + 1)
    out += _INT32.pack(count)
    return 0


def encode_produce_request(int version, int acks, int timeout_ms, topics):
    """The pieces of a request's body. topics: {name: [(partition, batch), ...], ...}"""
    cdef bytearray out = bytearray()
    cdef list pieces = []
    cdef bint flexible = version >= _FLEXIBLE
    cdef bytes name
    cdef Py_ssize_t size
    if flexible:
        out.append(0)  # no transactional id
        out += _BEGINNING.pack(acks, timeout_ms)
    else:
        out += _START.pack(-1, acks, timeout_ms)
    _count(out, len(topics), flexible)
    for topic, partitions in topics.items():
        name = (<str> topic).encode()
        if flexible:
            _varint(out, len(name) + 1)
        else:
            out += len(name).to_bytes(2, "big")
        out += name
        _count(out, len(partitions), flexible)
        for partition, batch in partitions:
            out += _INT32.pack(partition)
            size = len(batch)
            _count(out, size, flexible)
            if size < _WORTH_A_PIECE:
                out += batch
            else:
                pieces.append(out)
                pieces.append(batch)
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        pieces.append(out)
    return pieces


cdef class _Reader:
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef Py_ssize_t position, end, elements
    cdef bint flexible

    def __cinit__(self, body, bint flexible):
        PyObject_GetBuffer(body, &self.buffer, PyBUF_SIMPLE)
        self.data = <const uint8_t *> self.buffer.buf
        self.end = self.buffer.len
        self.elements = _MOST_ELEMENTS
        self.flexible = flexible

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef const uint8_t *take(self, Py_ssize_t count) except NULL:
        if count < 0 or count > self.end - self.position:
            raise MalformedResponseError(
                f"Produce: {count} bytes are announced at position {self.position} of the response, "
                f"{self.end - self.position} are left"
            )
        self.position += count
        return self.data + self.position - count

    cdef int16_t int16(self) except? -2:
        return <int16_t> load16(self.take(2))

    cdef int32_t int32(self) except? -2:
        return <int32_t> load32(self.take(4))

    cdef int64_t int64(self) except? -2:
        return <int64_t> load64(self.take(8))

    cdef Py_ssize_t varint(self) except -2:
        cdef Py_ssize_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            byte = self.take(1)[0]
            value |= <Py_ssize_t> (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedResponseError(
                    f"Produce: a length at position {self.position} of the response has more than five bytes"
                )

    cdef Py_ssize_t count(self, Py_ssize_t smallest) except -2:
        cdef Py_ssize_t count = self.varint() - 1 if self.flexible else self.int32()
        if count < 0:
            count = 0  # null
        if count * smallest > self.end - self.position or count > self.elements:
            raise MalformedResponseError(
                f"Produce: an array of {count} elements at position {self.position} of the response, "
                f"{self.end - self.position} bytes are left"
            )
        self.elements -= count
        return count

    cdef string(self):
        cdef Py_ssize_t size = self.varint() - 1 if self.flexible else self.int16()
        cdef const uint8_t *text
        if size < 0:
            return None
        if size == 0:
            return ""
        text = self.take(size)
        return PyUnicode_DecodeUTF8(<const char *> text, size, "replace")

    cdef int skip_tags(self) except -1:
        cdef Py_ssize_t tags
        if not self.flexible:
            return 0
        tags = self.varint()
        while tags > 0:
            self.varint()
            self.take(self.varint())
            tags -= 1
        return 0


def decode_produce_response(int version, body):
    """(throttle time in ms, {(topic, partition): (error code, base offset, log append time, message), ...})"""
    cdef _Reader reader = _Reader(body, version >= _FLEXIBLE)
    cdef dict found = {}
    cdef Py_ssize_t topic_count = reader.count(_SMALLEST_TOPIC)
    cdef Py_ssize_t partition_count, topic, partition
    cdef int number, code
    cdef long long base_offset, append_time
    for topic in range(topic_count):
        name = reader.string()
        partition_count = reader.count(_SMALLEST_PARTITION)
        for partition in range(partition_count):
            number = reader.int32()
            code = reader.int16()
            base_offset = reader.int64()
            append_time = reader.int64()
            if version >= 5:
                reader.int64()  # log start offset
            message = _error_message(reader) if version >= 8 else None
            reader.skip_tags()
            found[name, number] = (code, base_offset, append_time, message)
        reader.skip_tags()
    throttle = reader.int32()
    reader.skip_tags()
    return throttle, found


cdef _error_message(_Reader reader):
    """The broker's, and of the records that it names the first."""
    cdef Py_ssize_t record
    cdef Py_ssize_t count = reader.count(_SMALLEST_RECORD_ERROR)
    first = None
    for record in range(count):
        index = reader.int32()
        said = reader.string()
        reader.skip_tags()
        if first is None:
            first = f"record {index} of the batch: {said}" if said else f"record {index} of the batch"
    message = reader.string()
    if first is None:
        return message
    return f"{message} ({first})" if message else first
