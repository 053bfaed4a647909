# The rules that a batch must meet before it enters a log. They concern its bytes only, not the log. This is a kernel,
# because every append runs it.
#
# Kafka's rules for magic 2: the codec is known, the record count and the last offset delta agree, the checksum is
# right, and each record is framed correctly, with offset deltas 0, 1, 2, ... A max timestamp that is not the maximum of
# the records is corrected, as Kafka does, because consumers and the time index rely on it.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from libc.limits cimport LLONG_MAX, LLONG_MIN

from stratalog.records._framing cimport BatchHeader, checksum, fill_header
from stratalog.records._record_fields cimport HeaderFields, RecordFields, read_header, read_record
from stratalog.records.format cimport (
    CODEC_MASK, CODEC_ZSTD, CONTROL_BIT, CURRENT_MAGIC, HEADER_SIZE, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
)

from stratalog.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from stratalog.records._framing import set_max_timestamp
from stratalog.records._record_stream import RecordStream
from stratalog.records.batch import DEFAULT_MAX_DECOMPRESSED, Batch

MAX_HELD_DECOMPRESSED = 16 * 1024 * 1024
"""The limit of decompressed bytes for checking a batch in memory. Larger batches are checked piece by piece during
decompression."""

cdef enum:
    WORTH_RELEASING_THE_GIL = 16384


cpdef check_header(BatchHeader header):
    """Check the rules that concern only the header. Raises the error of the first rule that the header breaks."""
    if header.magic != CURRENT_MAGIC:
        raise UnsupportedMagicError(
            f"magic is {header.magic}; only magic 2 can be appended. Convert older messages with legacy.up_convert"
        )
    if header.record_count <= 0 or header.record_count - 1 != header.last_offset_delta:
        raise InvalidRecordError(
            f"record count is {header.record_count} and last offset delta {header.last_offset_delta}: "
            "the count must be at least 1 and one more than the delta"
        )
    if header.attributes & CODEC_MASK > CODEC_ZSTD:
        raise UnsupportedCodecError(f"codec is {header.attributes & CODEC_MASK}; 0 to 4 are known")
    if header.producer_id >= 0:
        # Transactional batches of coordinators have no sequences; check_contents requires them of clients.
        if header.producer_epoch < 0 or (header.base_sequence < 0 and not header.attributes & TRANSACTIONAL_BIT):
            raise _negative_field(header)
    elif header.attributes & TRANSACTIONAL_BIT:
        raise InvalidRecordError(
            f"producer id is {header.producer_id} in a transactional batch; it must not be negative"
        )


cdef _negative_field(BatchHeader header):
    return InvalidRecordError(
        f"producer id is {header.producer_id}, with producer epoch {header.producer_epoch} and base sequence "
        f"{header.base_sequence}: an idempotent batch must not have a negative one"
    )


def parse_for_append(data, Py_ssize_t max_batch_bytes):
    """Return the headers of all batches in `data`. Checks the header and the checksum of each batch."""
    cdef Py_buffer view
    cdef const unsigned char *start
    cdef BatchHeader header
    cdef list headers = []
    cdef Py_ssize_t position = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const unsigned char *>view.buf
        while position < view.len or not headers:
            header = BatchHeader.__new__(BatchHeader)
            if not fill_header(header, start, position, view.len) or header.size > view.len - position:
                raise CorruptBatchError(
                    f"{view.len - position} of {view.len} bytes are not a complete record batch, as build_batch returns",
                    position=position
                )
            check_header(header)
            if header.size > max_batch_bytes:
                raise MessageTooLargeError(f"batch has {header.size} bytes, max.message.bytes is {max_batch_bytes}")
            if checksum(start + position, header) != header.crc:
                Batch(data, header).check_crc()
            headers.append(header)
            position += header.size
        return headers
    finally:
        PyBuffer_Release(&view)


def check_contents(
    data, list headers, max_decompressed=DEFAULT_MAX_DECOMPRESSED, long long earliest=LLONG_MIN, list payloads=None
):
    """Check the additional rules for a client's batches: no control batch, every record valid, no timestamp before
    `earliest`. Correct a wrong max timestamp. Return how many records have no key. If `payloads` is a list, the
    decompressed records of each batch are appended to it."""
    cdef BatchHeader header
    cdef Walk walk
    cdef int null_keys = 0
    for header in headers:
        if header.attributes & CONTROL_BIT:
            raise InvalidRecordError("the control bit is set; only the broker writes control batches")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise _negative_field(header)
        if header.attributes & TIMESTAMP_TYPE_BIT:
            raise InvalidTimestampError("timestamp type is LogAppendTime, which only the log itself may set")
        payload = None
        if payloads is not None:
            payload = Batch(data, header).payload(max_decompressed)
            _check_records(payload, header, 0, -1, &walk)
            payloads.append(payload)
        elif header.attributes & CODEC_MASK:
            payload = _decompressed(data, header, max_decompressed)
            if payload is not None:
                _check_records(payload, header, 0, -1, &walk)
            else:
                _check_stream(data, header, max_decompressed, earliest, &walk)
        else:
            _check_records(data, header, header.position + HEADER_SIZE, header.position + header.size, &walk)
        null_keys += walk.null_keys
        if walk.max_timestamp_delta > 0 and header.base_timestamp > LLONG_MAX - walk.max_timestamp_delta:
            raise InvalidTimestampError(
                f"base timestamp is {header.base_timestamp} and a record's delta is {walk.max_timestamp_delta}: "
                "their sum must fit 64 bits"
            )
        if earliest != LLONG_MIN and not walk.is_streamed:
            _check_not_before(earliest, header, Batch(data, header).payload() if payload is None else payload)
        if header.base_timestamp + walk.max_timestamp_delta != header.max_timestamp:
            set_max_timestamp(data, header, header.base_timestamp + walk.max_timestamp_delta)
    return null_keys


cdef _decompressed(data, BatchHeader header, max_decompressed):
    """Return the decompressed records, or None if there are more than MAX_HELD_DECOMPRESSED bytes. Only with more than
    `max_decompressed` is that an error."""
    try:
        return Batch(data, header).payload(min(max_decompressed, MAX_HELD_DECOMPRESSED))
    except DecompressedTooLargeError:
        if max_decompressed <= MAX_HELD_DECOMPRESSED:
            raise
    return None


cdef int _check_stream(data, BatchHeader header, max_decompressed, long long earliest, Walk *walk) except -1:
    stream = RecordStream(header.record_count, -1 - header.base_timestamp)
    for piece in Batch(data, header).payload_in_pieces(max_decompressed):
        stream.feed(piece)
    stream.finish()
    walk.is_streamed = True
    walk.null_keys = stream.null_keys
    walk.max_timestamp_delta = stream.max_timestamp_delta
    if earliest != LLONG_MIN:
        _check_earliest(earliest, header, stream.min_timestamp_delta)
    return 0


cdef _check_not_before(long long earliest, BatchHeader header, payload):
    """Check that no record is dated before `earliest`. The records are valid. This is a loop of its own, so that logs
    without this rule don't pay for it."""
    cdef Py_buffer view
    cdef RecordFields record
    cdef const unsigned char *p
    cdef const unsigned char *end
    cdef long long absent = -1 - header.base_timestamp  # the delta of a record without a timestamp, which is allowed
    cdef long long least = LLONG_MAX
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char *>view.buf
        end = p + view.len
        with nogil:
            while p < end and read_record(p, end, &record) == NULL:
                if record.timestamp_delta < least and record.timestamp_delta != absent:
                    least = record.timestamp_delta
                p = record.end
    finally:
        PyBuffer_Release(&view)
    _check_earliest(earliest, header, least)


cdef _check_earliest(long long earliest, BatchHeader header, long long least):
    """Check the smallest timestamp delta of the records that have a timestamp, or LLONG_MAX if no record has one."""
    if least == LLONG_MAX:
        return
    timestamp = int(header.base_timestamp) + int(least)  # Python integers: their sum can't overflow
    if timestamp < earliest:
        raise InvalidTimestampError(
            f"a record's timestamp is {timestamp}; the earliest that message.timestamp.before.max.ms allows now is "
            f"{earliest}"
        )


def find_refused(
    data, list headers, max_decompressed, bint needs_keys, long long earliest, long long latest, int most
):
    """Return up to `most` records that break the rules of a log, from batches that passed check_contents(), as (index
    in the batch, whether its timestamp is the reason, timestamp). Raises DecompressedTooLargeError for a batch with
    more than MAX_HELD_DECOMPRESSED bytes."""
    cdef BatchHeader header
    cdef list refused = []
    for header in headers:
        payload = Batch(data, header).payload(min(max_decompressed, MAX_HELD_DECOMPRESSED))
        _find_refused(payload, header, needs_keys, earliest, latest, most, refused)
    return refused


cdef _find_refused(
    payload, BatchHeader header, bint needs_keys, long long earliest, long long latest, int most, list refused
):
    cdef Py_buffer view
    cdef RecordFields record
    cdef const unsigned char *p
    cdef const unsigned char *end
    cdef long long timestamp = 0
    cdef int index = 0
    cdef bint is_late = False, lacks_key = False
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char *>view.buf
        end = p + view.len
        while len(refused) < most:
            with nogil:
                is_late = lacks_key = False
                while p < end and read_record(p, end, &record) == NULL:
                    timestamp = <long long>(
                        <unsigned long long>header.base_timestamp + <unsigned long long>record.timestamp_delta
                    )
                    is_late = timestamp > latest or (timestamp < earliest and timestamp != -1)
                    lacks_key = needs_keys and record.key_length < 0
                    p = record.end
                    index += 1
                    if is_late or lacks_key:
                        break
            if not (is_late or lacks_key):
                return
            refused.append((index - 1, bool(is_late), timestamp))
    finally:
        PyBuffer_Release(&view)


def check_records(payload, BatchHeader header, Py_ssize_t start=0, Py_ssize_t end=-1):
    """Check the framing of payload[start:end], the decompressed records of a batch. Return the max timestamp of the
    records, and how many have no key. Raises InvalidRecordError, which names the record.
    """
    cdef Walk walk
    _check_records(payload, header, start, end, &walk)
    return header.base_timestamp + walk.max_timestamp_delta, walk.null_keys


cdef struct Walk:
    int index
    int null_keys
    long long max_timestamp_delta
    const char *problem
    bint is_streamed


cdef int _check_records(payload, BatchHeader header, Py_ssize_t start, Py_ssize_t end, Walk *walk) except -1:
    cdef Py_buffer view
    cdef int count = header.record_count
    cdef const unsigned char *data
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if end < 0:
            end = view.len
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        data = <const unsigned char *>view.buf
        if end - start < WORTH_RELEASING_THE_GIL:
            _walk(data + start, data + end, count, walk)
        else:
            with nogil:
                _walk(data + start, data + end, count, walk)
    finally:
        PyBuffer_Release(&view)
    if walk.problem != NULL:
        raise InvalidRecordError(f"record {walk.index} of {count}: {walk.problem.decode()}")
    return 0


cdef void _walk(const unsigned char *p, const unsigned char *end, int count, Walk *walk) noexcept nogil:
    """Check `count` records: their framing, their offset deltas 0, 1, 2, ..., and that no bytes are left over."""
    # All variables of the loop are local, so that the compiler can keep them in registers.
    cdef RecordFields record
    cdef const char *problem = NULL
    cdef long long max_timestamp_delta = LLONG_MIN
    cdef int null_keys = 0
    cdef int i = 0
    while i < count:
        problem = read_record(p, end, &record)
        if problem != NULL:
            break
        if record.offset_delta != i:
            problem = b"offset delta is not its index in the batch"
            break
        if record.header_count:
            problem = _walk_headers(record.headers, record.end, record.header_count)
            if problem != NULL:
                break
        if record.timestamp_delta > max_timestamp_delta:
            max_timestamp_delta = record.timestamp_delta
        null_keys += record.key_length < 0
        p = record.end
        i += 1
    if problem == NULL and p != end:
        problem = b"bytes are left over after the last record"
    walk.index = i
    walk.null_keys = null_keys
    walk.max_timestamp_delta = max_timestamp_delta
    walk.problem = problem
    walk.is_streamed = False


cdef const char *_walk_headers(const unsigned char *p, const unsigned char *end, int count) noexcept nogil:
    cdef HeaderFields header
    cdef const char *problem
    while count > 0:
        count -= 1
        problem = read_header(&p, end, &header)
        if problem != NULL:
            return problem
    if p != end:
        return b"length leaves bytes over"
    return NULL
