# Batch headers over raw bytes: parsing them, walking from one to the next, and writing the fields that the broker sets.
# Reads no record.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from stratalog.records._crc32c cimport crc32c_of
from stratalog.records._varint cimport load16, load32, load64, store16, store32, store64
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_LENGTH_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    LEGACY_ATTRIBUTES_POSITION,
    LEGACY_CRC_POSITION,
    LEGACY_TIMESTAMP_POSITION,
    LEGACY_V0_MINIMUM,
    LEGACY_V1_MINIMUM,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORD_COUNT_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

from stratalog.errors import CorruptBatchError, InvalidRecordError, UnsupportedMagicError

cdef class BatchHeader:
    """The fields of a batch header. A legacy message counts as a batch of one record, also if it is a wrapper, whose
    offset is its last message's. Fields that magic 0 and 1 don't have are -1."""

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self):
        # After 2^31 - 1, sequences continue with 0.
        if self.base_sequence < 0:
            return self.base_sequence
        return (<long long>self.base_sequence + self.last_offset_delta) % (<long long>2147483648)

    @property
    def codec(self):
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self):
        return -1 if self.magic == 0 else 1 if self.attributes & TIMESTAMP_TYPE_BIT else 0

    @property
    def is_transactional(self):
        return self.magic == CURRENT_MAGIC and (self.attributes & TRANSACTIONAL_BIT) != 0

    @property
    def is_control(self):
        return self.magic == CURRENT_MAGIC and (self.attributes & CONTROL_BIT) != 0

    @property
    def has_delete_horizon(self):
        return self.magic == CURRENT_MAGIC and (self.attributes & DELETE_HORIZON_BIT) != 0

    def __repr__(self):
        return (
            f"BatchHeader(position={self.position}, size={self.size}, magic={self.magic}, "
            f"base_offset={self.base_offset}, last_offset={self.last_offset}, record_count={self.record_count}, "
            f"codec={self.codec}, max_timestamp={self.max_timestamp}, leader_epoch={self.leader_epoch}, "
            f"producer_id={self.producer_id}, base_sequence={self.base_sequence})"
        )


cdef int fill_header(BatchHeader header, const unsigned char *data, Py_ssize_t position, Py_ssize_t end) except -1:
    """Parse the header at `position`. Return 1, or 0 if the header goes past `end`. Raise an error if these bytes can't
    be a header."""
    cdef const unsigned char *p = data + position
    cdef Py_ssize_t left = end - position
    cdef int length
    if left < LOG_OVERHEAD:
        return 0
    length = <int>load32(p + BATCH_LENGTH_POSITION)
    if length < LEGACY_V0_MINIMUM - LOG_OVERHEAD:
        raise CorruptBatchError(f"batch length is {length}, less than the smallest message", position=position)
    if left <= MAGIC_POSITION:
        return 0
    header.position = position
    header.size = <Py_ssize_t>length + LOG_OVERHEAD
    header.base_offset = <long long>load64(p)
    header.magic = <signed char>p[MAGIC_POSITION]
    if header.magic == CURRENT_MAGIC:
        if header.size < HEADER_SIZE:
            raise CorruptBatchError(f"batch length is {length}, less than a batch header", position=position)
        if left < HEADER_SIZE:
            return 0
        header.leader_epoch = <int>load32(p + LEADER_EPOCH_POSITION)
        header.crc = load32(p + CRC_POSITION)
        header.attributes = <short>load16(p + ATTRIBUTES_POSITION)
        header.last_offset_delta = <int>load32(p + LAST_OFFSET_DELTA_POSITION)
        header.base_timestamp = <long long>load64(p + BASE_TIMESTAMP_POSITION)
        header.max_timestamp = <long long>load64(p + MAX_TIMESTAMP_POSITION)
        header.producer_id = <long long>load64(p + PRODUCER_ID_POSITION)
        header.producer_epoch = <short>load16(p + PRODUCER_EPOCH_POSITION)
        header.base_sequence = <int>load32(p + BASE_SEQUENCE_POSITION)
        header.record_count = <int>load32(p + RECORD_COUNT_POSITION)
        return 1
    if header.magic != 0 and header.magic != 1:
        raise UnsupportedMagicError(f"magic is {header.magic} at position {position}; 0, 1 and 2 are known")
    if header.magic == 1 and header.size < LEGACY_V1_MINIMUM:
        raise CorruptBatchError(f"message size is {length}, less than a magic 1 message", position=position)
    if left < LEGACY_V1_MINIMUM and (header.magic == 1 or left < LEGACY_V0_MINIMUM):
        return 0
    header.crc = load32(p + LEGACY_CRC_POSITION)
    header.attributes = p[LEGACY_ATTRIBUTES_POSITION]
    header.max_timestamp = <long long>load64(p + LEGACY_TIMESTAMP_POSITION) if header.magic == 1 else -1
    header.base_timestamp = header.max_timestamp
    header.leader_epoch = header.producer_epoch = header.base_sequence = -1
    header.producer_id = -1
    header.last_offset_delta = 0
    header.record_count = 1
    return 1


def parse_header(buffer, Py_ssize_t position=0):
    """Return the header of the batch at `position`, or None if the buffer ends inside the header. The records need not
    be complete."""
    cdef Py_buffer view
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise ValueError(f"position {position} is outside the buffer of {view.len} bytes")
        if fill_header(header, <const unsigned char *>view.buf, position, view.len):
            return header
        return None
    finally:
        PyBuffer_Release(&view)


def parse_headers(buffer, Py_ssize_t start=0, Py_ssize_t end=-1):
    """Return the headers of the complete batches in buffer[start:end], the position after the last of them, and the
    error at that position. Without an error, the range ends there, or inside a batch."""
    cdef Py_buffer view
    cdef BatchHeader header
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if end < 0:
            end = view.len
        if start < 0 or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        while start < end:
            header = BatchHeader.__new__(BatchHeader)
            try:
                if not fill_header(header, <const unsigned char *>view.buf, start, end) or header.size > end - start:
                    break
            except (CorruptBatchError, UnsupportedMagicError) as error:
                return headers, start, error
            headers.append(header)
            start += header.size
        return headers, start, None
    finally:
        PyBuffer_Release(&view)


def _reason(error):
    """Return the error's message without its position, which counts from the start of the buffer."""
    return error.reason if isinstance(error, CorruptBatchError) else str(error)


def find_batch(buffer, long long target, Py_ssize_t origin=0, long long previous=-1, long long expected=-1):
    """Walk from the start of the buffer to the first batch whose last offset is `target` or higher.

    The buffer starts at position `origin` of a file, after a batch with last offset `previous`. `expected` is the last
    offset that an index states for the first batch, or -1. Return (header or None, position in the file where the walk
    stopped, last offset of the batches before it, number of batches before it). None means that the walk reached the
    end of the buffer: continue at that position with more bytes. Raises CorruptBatchError if offsets don't rise, and
    LookupError if the index is wrong.
    """
    cdef Py_buffer view
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    cdef Py_ssize_t position = 0
    cdef long long last
    cdef int stepped = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            try:
                if not fill_header(header, <const unsigned char *>view.buf, position, view.len):
                    break
            except (CorruptBatchError, UnsupportedMagicError) as error:
                if expected >= 0:
                    raise LookupError(f"the index has offset {expected} where there is no batch: {error}") from error
                raise CorruptBatchError(_reason(error), position=origin + position) from error
            last = header.base_offset + header.last_offset_delta
            if expected >= 0:
                if last != expected:
                    raise LookupError(f"the index has offset {expected}, but the batch there ends at {last}")
                expected = -1
            if header.base_offset <= previous or last < header.base_offset:
                raise CorruptBatchError(
                    f"offsets {header.base_offset}..{last} follow offset {previous}", position=origin + position
                )
            header.position = origin + position
            if last >= target:
                return header, header.position, previous, stepped
            previous = last
            position += header.size
            stepped += 1
        return None, origin + position, previous, stepped
    finally:
        PyBuffer_Release(&view)


def stamp(buffer, list headers, long long base_offset, int leader_epoch, long long append_time=-1):
    """Write consecutive offsets from `base_offset` on and the leader epoch into the batches and their headers, in
    place.

    With `append_time` >= 0 the records get that timestamp (LogAppendTime), which costs one CRC per batch. Return the
    offset after the last record.
    """
    cdef Py_buffer view
    cdef BatchHeader header
    cdef unsigned char *p
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        for header in headers:
            if header.magic != CURRENT_MAGIC:
                raise UnsupportedMagicError(f"magic is {header.magic}; only magic 2 can be stamped")
            if header.position + header.size > view.len:
                raise ValueError(f"{header!r} is not the header of a batch in this buffer of {view.len} bytes")
            p = <unsigned char *>view.buf + header.position
            header.base_offset = base_offset
            header.leader_epoch = leader_epoch
            store64(p, <unsigned long long>base_offset)
            store32(p + LEADER_EPOCH_POSITION, <unsigned int>leader_epoch)
            if append_time >= 0:
                header.attributes |= TIMESTAMP_TYPE_BIT
                header.max_timestamp = append_time
                store16(p + ATTRIBUTES_POSITION, <unsigned short>header.attributes)
                store64(p + MAX_TIMESTAMP_POSITION, <unsigned long long>append_time)
                _store_crc(header, p)
            base_offset += header.last_offset_delta + 1
        return base_offset
    finally:
        PyBuffer_Release(&view)


def set_max_timestamp(buffer, BatchHeader header, long long max_timestamp):
    """Correct the max timestamp of a batch and its checksum, in place."""
    cdef Py_buffer view
    cdef unsigned char *p
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if header.magic != CURRENT_MAGIC or header.position + header.size > view.len:
            raise ValueError(f"{header!r} is not the header of a batch in this buffer of {view.len} bytes")
        p = <unsigned char *>view.buf + header.position
        header.max_timestamp = max_timestamp
        store64(p + MAX_TIMESTAMP_POSITION, <unsigned long long>max_timestamp)
        _store_crc(header, p)
    finally:
        PyBuffer_Release(&view)


cdef _store_crc(BatchHeader header, unsigned char *p):
    header.crc = checksum(p, header)
    store32(p + CRC_POSITION, header.crc)


cdef unsigned int checksum(const unsigned char *batch, BatchHeader header) except? 0:
    """Return the CRC-32C of the magic 2 batch that starts at `batch`."""
    return crc32c_of(batch + ATTRIBUTES_POSITION, header.size - ATTRIBUTES_POSITION)


def count_valid(buffer, list headers, Py_ssize_t first, long long previous, long long limit, bint checksums):
    """Return how many batches from headers[first] on are valid by these quick checks: magic 2, offsets that continue
    after `previous` and stay less than `limit`, and, with `checksums`, the right checksum. The batch that stops the
    count may be valid, too, but needs the slower checks."""
    cdef Py_buffer view
    cdef BatchHeader header, following
    cdef Py_ssize_t at, count = len(headers)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        for at in range(first, count):
            header = headers[at]
            if header.position < 0 or header.size < 0 or header.position + header.size > view.len:
                raise ValueError(f"the batch at position {header.position} goes past the buffer of {view.len} bytes")
            if header.magic != CURRENT_MAGIC or header.last_offset_delta < 0 or header.base_offset <= previous:
                return at - first
            if header.base_offset >= limit - header.last_offset_delta:
                return at - first
            if header.base_offset != previous + 1:
                if at + 1 == count:
                    return at - first
                following = headers[at + 1]
                if following.base_offset <= header.base_offset + header.last_offset_delta:
                    return at - first
            if checksums and checksum(<const unsigned char *>view.buf + header.position, header) != header.crc:
                return at - first
            previous = header.base_offset + header.last_offset_delta
        return count - first
    finally:
        PyBuffer_Release(&view)


def crc_matches(buffer, BatchHeader header):
    """Return whether the CRC-32C of a magic 2 batch is the one in its header."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if header.position + header.size > view.len:
            raise ValueError(f"the batch at position {header.position} goes past the buffer of {view.len} bytes")
        return checksum(<const unsigned char *>view.buf + header.position, header) == header.crc
    finally:
        PyBuffer_Release(&view)
