"""The hot requests, read in place: Produce and Fetch, whose frames come by the ten thousand a second.

Every length and count is checked against the bytes that are left before anything is made of it. Strings become Python
objects; record bytes stay where they are, as positions in the frame. Topics and partitions are limited in number, as
the elements of every request are.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from stratalog.errors import MalformedRequestError
from stratalog.protocol.api_keys import VERSIONS
from stratalog.protocol.limits import MOST_ELEMENTS

FINE, NO_RECORDS, TOO_SMALL, OLD_MAGIC, UNKNOWN_MAGIC, SEVERAL_BATCHES, TRANSACTIONAL, ZSTD_TOO_EARLY = range(8)

cdef enum:
    _KEYS = 128
    _SMALLEST_BATCH = 61
    _LENGTH_AT = 8
    _BEFORE_LENGTH_COUNTS = 12
    _MAGIC_AT = 16
    _ATTRIBUTES_AT = 22  # the low byte
    _TRANSACTIONAL = 0x10
    _CODEC_MASK = 0x07
    _ZSTD = 4
    _FIRST_WITH_ZSTD = 7

cdef int _first_flexible[_KEYS]
cdef int _highest[_KEYS]
for _key in range(_KEYS):
    _first_flexible[_key] = VERSIONS[_key].first_flexible if _key in VERSIONS else 0
    _highest[_key] = VERSIONS[_key].highest if _key in VERSIONS else -1

cdef int _NULL = -1
cdef Py_ssize_t _MOST_ELEMENTS = MOST_ELEMENTS


cdef class _Cursor:
    cdef Py_buffer buffer
    cdef const uint8_t* data
    cdef Py_ssize_t position
    cdef Py_ssize_t end
    cdef Py_ssize_t elements  # that there may still be
    cdef bint flexible

    def __cinit__(self, frame, Py_ssize_t position, bint flexible):
        PyObject_GetBuffer(frame, &self.buffer, PyBUF_SIMPLE)  # a typed memoryview would cost more than the parsing
        self.data = <const uint8_t*> self.buffer.buf
        self.end = self.buffer.len
        self.position = position
        self.elements = _MOST_ELEMENTS
        self.flexible = flexible

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef int need(self, Py_ssize_t count) except -1:
        if count < 0 or count > self.end - self.position:
            raise MalformedRequestError(
                f"{count} bytes are announced at position {self.position}, {self.end - self.position} are left"
            )
        return 0

    cdef int8(self):
        self.need(1)
        self.position += 1
        return <signed char> self.data[self.position - 1]

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
                    raise MalformedRequestError(f"a length at position {self.position} does not fit 32 bits")
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequestError(f"a length at position {self.position} has more than five bytes")

    cdef Py_ssize_t length(self, bint short) except? -2:
        """Of a string, bytes or an array; -1 is null."""
        if self.flexible:
            return self.varint() - 1
        return self.int16() if short else self.int32()

    cdef Py_ssize_t count(self, Py_ssize_t smallest) except -2:
        """Of an array that can't be null, whose elements take at least `smallest` bytes each."""
        cdef Py_ssize_t count = self.length(False)
        if count < 0:
            raise MalformedRequestError(f"an array of {count} elements at position {self.position}")
        if count * smallest > self.end - self.position:
            raise MalformedRequestError(
                f"an array of {count} elements at position {self.position}, {self.end - self.position} bytes are left"
            )
        self.spend(count)
        return count

    cdef int spend(self, Py_ssize_t count) except -1:
        self.elements -= count
        if self.elements < 0:
            raise MalformedRequestError(
                f"more than {_MOST_ELEMENTS} elements in arrays, counted up to the one at position {self.position}"
            )
        return 0

    cdef string(self):
        cdef Py_ssize_t size = self.length(True)
        if size == _NULL:
            return None
        self.need(size)
        self.position += size
        try:
            return PyUnicode_DecodeUTF8(<const char*> self.data + self.position - size, size, NULL)
        except UnicodeDecodeError as error:
            raise MalformedRequestError(f"a string at position {self.position - size} is not UTF-8") from error

    cdef topic_id(self):
        self.need(16)
        self.position += 16
        return PyBytes_FromStringAndSize(<const char*> self.data + self.position - 16, 16)

    cdef int skip_tags(self) except -1:
        """Tagged fields that are not looked at."""
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

    cdef int finish(self) except -1:
        if self.position != self.end:
            raise MalformedRequestError(f"{self.end - self.position} bytes too many behind the request")
        return 0


def parse_request_header(frame):
    """(API key, version, correlation id, client id, position of what follows). Tagged fields are skipped where the
    version has them; of an API or version that is not served that is not known."""
    cdef _Cursor cursor = _Cursor(frame, 0, False)
    cdef int key = cursor.int16()
    cdef int version = cursor.int16()
    correlation_id = cursor.int32()
    client_id = cursor.string()
    if 0 <= key < _KEYS and _first_flexible[key] <= version <= _highest[key]:
        cursor.flexible = True
        cursor.skip_tags()
    return key, version, correlation_id, client_id, cursor.position


def batch_fault(frame, Py_ssize_t start, Py_ssize_t end, int version):
    """What Kafka asks of a request's records beyond what the log asks of a batch; FINE, or the first fault.
    TRANSACTIONAL is the last: it is none where the producer has a transaction open."""
    cdef _Cursor cursor = _Cursor(frame, start, False)
    cdef const uint8_t* batch = cursor.data + start
    cdef Py_ssize_t size = end - start
    if start < 0 or size == 0:
        return NO_RECORDS
    if size < _SMALLEST_BATCH:
        return TOO_SMALL
    if batch[_MAGIC_AT] != 2:
        return OLD_MAGIC if batch[_MAGIC_AT] < 2 else UNKNOWN_MAGIC
    cursor.position = start + _LENGTH_AT
    if cursor.int32() + _BEFORE_LENGTH_COUNTS < size:
        return SEVERAL_BATCHES
    if batch[_ATTRIBUTES_AT] & _CODEC_MASK == _ZSTD and version < _FIRST_WITH_ZSTD:
        return ZSTD_TOO_EARLY
    if batch[_ATTRIBUTES_AT] & _TRANSACTIONAL:
        return TRANSACTIONAL
    return FINE


def parse_produce(frame, Py_ssize_t position, int version):
    """(transactional id, acks, timeout, [(topic name or the 16 bytes of its id, [(partition, start, end), ...]), ...]).

    Record bytes are frame[start:end]; start is -1 where they are null.
    """
    cdef _Cursor cursor = _Cursor(frame, position, version >= 9)
    cdef Py_ssize_t topic, partition, partition_count, size, start
    cdef bint by_id = version >= 13
    transactional_id = cursor.string() if version >= 3 else None
    acks = cursor.int16()
    timeout = cursor.int32()
    cdef Py_ssize_t topic_count = cursor.count(3)
    topics = []
    for topic in range(topic_count):
        name = cursor.topic_id() if by_id else cursor.string()
        if name is None:
            raise MalformedRequestError(f"the topic at position {cursor.position} has no name")
        partition_count = cursor.count(5)
        partitions = []
        for partition in range(partition_count):
            index = cursor.int32()
            size = cursor.length(False)
            start = -1
            if size != _NULL:
                cursor.need(size)
                start = cursor.position
                cursor.position += size
            cursor.skip_tags()
            partitions.append((index, start, start + size))
        cursor.skip_tags()
        topics.append((name, partitions))
    cursor.skip_tags()
    cursor.finish()
    return transactional_id, acks, timeout, topics


def parse_fetch(frame, Py_ssize_t position, int version):
    """(replica id, max wait, min bytes, max bytes, isolation level, session id, session epoch, topics, forgotten).

    topics: [(name or id, [(partition, current leader epoch, offset, last fetched epoch, max bytes), ...]), ...]
    forgotten: [(name or id, [partition, ...]), ...]
    """
    cdef _Cursor cursor = _Cursor(frame, position, version >= 12)
    cdef Py_ssize_t topic, partition, partition_count, forgotten_count
    cdef bint by_id = version >= 13
    replica_id = -1
    if version < 15:
        replica_id = cursor.int32()
    max_wait = cursor.int32()
    min_bytes = cursor.int32()
    max_bytes = cursor.int32()
    isolation_level = cursor.int8()
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id = cursor.int32()
        session_epoch = cursor.int32()
    cdef Py_ssize_t topic_count = cursor.count(3)
    topics = []
    for topic in range(topic_count):
        name = cursor.topic_id() if by_id else cursor.string()
        if name is None:
            raise MalformedRequestError(f"the topic at position {cursor.position} has no name")
        partition_count = cursor.count(16)
        partitions = []
        for partition in range(partition_count):
            index = cursor.int32()
            leader_epoch = cursor.int32() if version >= 9 else -1
            offset = cursor.int64()
            last_epoch = cursor.int32() if version >= 12 else -1
            if version >= 5:
                cursor.int64()  # the log start offset of a follower
            size = cursor.int32()
            cursor.skip_tags()
            partitions.append((index, leader_epoch, offset, last_epoch, size))
        cursor.skip_tags()
        topics.append((name, partitions))
    forgotten = []
    if version >= 7:
        forgotten_count = cursor.count(3)
        for topic in range(forgotten_count):
            name = cursor.topic_id() if by_id else cursor.string()
            if name is None:
                raise MalformedRequestError(f"the topic at position {cursor.position} has no name")
            partition_count = cursor.count(4)
            forgotten.append((name, [cursor.int32() for partition in range(partition_count)]))
            cursor.skip_tags()
    if version >= 11:
        cursor.string()  # the consumer's rack
    if cursor.flexible:
        replica_id = _fetch_tags(cursor, version, replica_id)
    cursor.finish()
    return replica_id, max_wait, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topics, forgotten


cdef _fetch_tags(_Cursor cursor, int version, replica_id):
    """From v15 on the replica's state is a tagged field; the cluster id is one too."""
    cdef Py_ssize_t tags = cursor.varint()
    cdef Py_ssize_t tag, size
    cursor.spend(tags)
    while tags > 0:
        tag = cursor.varint()
        size = cursor.varint()
        cursor.need(size)
        if tag == 1 and version >= 15:
            replica_id = cursor.int32() if size >= 4 else cursor.need(-1)
            cursor.position -= 4
        cursor.position += size
        tags -= 1
    return replica_id
