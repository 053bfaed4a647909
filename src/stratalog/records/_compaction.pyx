# The second loop of compaction over records: which records of a batch survive. A KeyMap (_key_map.pyx) knows each key's
# last offset; filter_batch and copy_plain copy the surviving records. Nothing here knows files or segments.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MIN
from libc.string cimport memcmp, memcpy

from stratalog.records._crc32c cimport crc32c_of
from stratalog.records._framing cimport BatchHeader, checksum, fill_header
from stratalog.records._key_map cimport (
    KEYS_AHEAD,
    Hash,
    KeyMap,
    corrupt_record,
    find_slot,
    has_last,
    hash_ahead,
    is_last,
)
from stratalog.records._record_fields cimport RecordFields, read_record
from stratalog.records._varint cimport (
    read_varint,
    read_varlong,
    store32,
    store64,
    varint_size,
    write_varint,
)
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    RECORD_COUNT_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)


cdef struct RecordRead:
    Hash hash
    const unsigned char *start
    const unsigned char *end
    long long timestamp_delta
    int offset_delta
    bint has_key
    bint is_tombstone


cdef class Kept:
    """The records of a batch that survive: `payload`, after room for a header, or None if all records survive."""

    cdef readonly int count
    cdef readonly int removed
    cdef readonly int tombstones           # of the `count` that survive
    cdef readonly long long max_timestamp_delta
    cdef readonly long long max_timestamp  # for the header of a batch with the surviving records
    cdef readonly bytearray payload


def filter_batch(
    payload, BatchHeader header, KeyMap keys, bint drop_tombstones, Py_ssize_t start=0, Py_ssize_t end=-1
):
    """Return the records of a batch that survive: each key's last record, and all records after the map's last offset.
    A tombstone survives unless `drop_tombstones`. A record without a key does not: no record could ever replace it."""
    cdef Py_buffer view
    cdef Kept kept = Kept.__new__(Kept)
    cdef const char *problem = NULL
    cdef bytearray out
    cdef unsigned char *room
    cdef Py_ssize_t size = 0
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if end < 0:
            end = view.len
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        out = bytearray()
        PyByteArray_Resize(out, HEADER_SIZE + end - start)
        room = <unsigned char *>PyByteArray_AS_STRING(out) + HEADER_SIZE
        with nogil:
            size = _filter(
                keys, <const unsigned char *>view.buf + start, <const unsigned char *>view.buf + end,
                header.record_count, header.base_offset, header.last_offset_delta, drop_tombstones,
                room, kept, &problem,
            )
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise corrupt_record(header, problem)
    kept.max_timestamp = _max_timestamp(header, kept)
    if kept.removed:
        PyByteArray_Resize(out, HEADER_SIZE + size)
        kept.payload = out
    return kept


def reseal(bytearray batch, buffer, BatchHeader header, int record_count, long long max_timestamp):
    """Write the header of `batch`, whose records start after room for it: the source batch's header, which is in
    `buffer`, with a new length, record count, max timestamp and checksum. For uncompressed batches."""
    cdef Py_buffer view
    cdef unsigned char *out = <unsigned char *>PyByteArray_AS_STRING(batch)
    cdef Py_ssize_t size = len(batch)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if size < HEADER_SIZE or header.position < 0 or header.position + HEADER_SIZE > view.len:
            raise ValueError(
                f"{size} bytes have no room for a header, or {view.len} bytes have none at {header.position}"
            )
        memcpy(out, <const unsigned char *>view.buf + header.position, HEADER_SIZE)
    finally:
        PyBuffer_Release(&view)
    _set_header(out, size, record_count, max_timestamp)


cdef int _set_header(unsigned char *batch, Py_ssize_t size, int record_count, long long max_timestamp) except -1:
    store32(batch + BATCH_LENGTH_POSITION, <unsigned int>(size - LOG_OVERHEAD))
    store64(batch + MAX_TIMESTAMP_POSITION, <unsigned long long>max_timestamp)
    store32(batch + RECORD_COUNT_POSITION, <unsigned int>record_count)
    store32(batch + CRC_POSITION, crc32c_of(batch + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION))
    return 0


def copy_plain(
    KeyMap keys, buffer, list headers, Py_ssize_t first, long long now_ms, bytearray out, list kept_headers
):
    """Append the surviving records of the batches from headers[first] on to `out`, and their headers to `kept_headers`.

    Stop before a batch that needs more work than a copy: a batch that is compressed, has a producer id, is of an old
    format, is damaged, or has a tombstone but no delete horizon yet. Return its index, and whether any record before it
    was removed.
    """
    cdef Py_buffer view
    cdef BatchHeader header, changed_header
    cdef Kept kept = Kept.__new__(Kept)
    cdef const unsigned char *batch
    cdef unsigned char *room
    cdef const char *problem = NULL
    cdef Py_ssize_t index = first, before, size
    cdef long long last
    cdef bint changed = False, drop_tombstones
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while index < len(headers):
            header = headers[index]
            if header.magic != CURRENT_MAGIC or header.producer_id >= 0:
                break
            if header.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
                break
            last = header.base_offset + header.last_offset_delta
            if header.base_offset >= keys._listed_from and last <= keys.latest:
                if not has_last(keys, header.base_offset, last):
                    changed = True
                    index += 1
                    continue
            if header.position < 0 or header.size < HEADER_SIZE or header.position + header.size > view.len:
                raise ValueError(f"the batch at position {header.position} goes past {view.len} bytes")
            batch = <const unsigned char *>view.buf + header.position
            if checksum(batch, header) != header.crc:
                break
            drop_tombstones = header.attributes & DELETE_HORIZON_BIT and header.base_timestamp <= now_ms
            before = len(out)
            PyByteArray_Resize(out, before + header.size)
            room = <unsigned char *>PyByteArray_AS_STRING(out) + before + HEADER_SIZE
            with nogil:
                size = HEADER_SIZE + _filter(
                    keys, batch + HEADER_SIZE, batch + header.size, header.record_count, header.base_offset,
                    header.last_offset_delta, drop_tombstones, room, kept, &problem,
                )
            if problem != NULL or (kept.tombstones and not header.attributes & DELETE_HORIZON_BIT):
                PyByteArray_Resize(out, before)
                break
            index += 1
            if kept.count == 0:
                PyByteArray_Resize(out, before)
                changed = True
                continue
            PyByteArray_Resize(out, before + size)
            memcpy(PyByteArray_AS_STRING(out) + before, batch, HEADER_SIZE)
            if not kept.removed:
                kept_headers.append(header)
                continue
            changed = True
            _set_header(
                <unsigned char *>PyByteArray_AS_STRING(out) + before, size, kept.count, _max_timestamp(header, kept)
            )
            changed_header = BatchHeader.__new__(BatchHeader)
            fill_header(changed_header, <const unsigned char *>PyByteArray_AS_STRING(out), before, before + size)
            kept_headers.append(changed_header)
        return index, changed
    finally:
        PyBuffer_Release(&view)


cdef long long _max_timestamp(BatchHeader header, Kept kept) noexcept:
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.max_timestamp
    # Unsigned: the sum of timestamps that are not valid may overflow, which must be defined.
    return <long long>(<unsigned long long>header.base_timestamp + <unsigned long long>kept.max_timestamp_delta)


cdef Py_ssize_t _filter_listed(
    KeyMap keys, const unsigned char *p, const unsigned char *end, int count, long long base, bint drop_tombstones,
    unsigned char *out, Kept kept, const char **problem,
) noexcept nogil:
    """_filter() for a batch whose offsets are all in the list. Of a record that is removed, only the offset is read."""
    cdef RecordFields record
    cdef const unsigned char *run = p
    cdef unsigned char *first = out
    cdef const unsigned char *body
    cdef const unsigned char *record_end
    cdef long long timestamp_delta, max_delta = LLONG_MIN
    cdef int length, offset_delta
    cdef int survivors = 0, tombstones = 0, removed = 0
    cdef bint survives
    while count > 0:
        count -= 1
        body = read_varint(p, end, &length)
        if body == NULL or length < 1 or length > end - body:
            problem[0] = b"length goes past the end of the batch"
            return 0
        record_end = body + length
        body = read_varlong(body + 1, record_end, &timestamp_delta)
        if body != NULL:
            body = read_varint(body, record_end, &offset_delta)
        if body == NULL or offset_delta < 0 or base + offset_delta > keys.latest:
            problem[0] = b"offset delta can't be read, or is outside the batch"
            return 0
        survives = is_last(keys, base + offset_delta)
        if survives:
            problem[0] = read_record(p, end, &record)
            if problem[0] != NULL:
                return 0
            survives = record.value_length >= 0 or not drop_tombstones
            survives = survives and record.key_length >= 0  # a damaged batch may have the same offset twice
        if survives:
            survivors += 1
            tombstones += record.value_length < 0
            if timestamp_delta > max_delta:
                max_delta = timestamp_delta
        else:
            removed += 1
            if p > run:
                memcpy(out, run, p - run)
                out += p - run
            run = record_end
        p = record_end
    if p != end:
        problem[0] = b"bytes are left over after the last record"
        return 0
    memcpy(out, run, p - run)
    out += p - run
    kept.count = survivors
    kept.removed = removed
    kept.tombstones = tombstones
    kept.max_timestamp_delta = max_delta
    return out - first


cdef int _read_ahead(
    KeyMap keys, const unsigned char **cursor, const unsigned char *end, int count, RecordRead *read, long long base,
    long long below, const char **problem,
) noexcept nogil:
    """Read `count` records, move the cursor after them, and return how many were read. Hash the keys of records whose
    offsets are less than `below`, and prefetch their slots. With a problem, the cursor stays where it was."""
    cdef RecordFields record
    cdef const unsigned char *p = cursor[0]
    cdef int i
    for i in range(count):
        problem[0] = read_record(p, end, &record)
        if problem[0] != NULL:
            return i
        read[i].start = p
        read[i].end = record.end
        read[i].offset_delta = record.offset_delta
        read[i].timestamp_delta = record.timestamp_delta
        read[i].has_key = record.key_length >= 0
        read[i].is_tombstone = record.value_length < 0
        if record.key_length >= 0 and base + record.offset_delta < below:
            read[i].hash = hash_ahead(keys, record.key, record.key_length)
        p = record.end
    cursor[0] = p
    return count


cdef Py_ssize_t _filter(
    KeyMap keys, const unsigned char *p, const unsigned char *end, int count, long long base, int last_delta,
    bint drop_tombstones, unsigned char *out, Kept kept, const char **problem,
) noexcept nogil:
    """Copy the surviving records to `out`, a run of neighbours at a time, and return how many bytes they have."""
    cdef RecordRead read[KEYS_AHEAD]
    cdef const unsigned char *run = p
    cdef unsigned char *first = out
    cdef long long latest = keys.latest
    cdef long long listed = keys._listed_from
    cdef long long offset, max_delta = LLONG_MIN
    cdef int number_read, i
    cdef int survivors = 0, tombstones = 0, removed = 0
    cdef bint survives
    if base >= listed and base + last_delta <= latest:
        return _filter_listed(keys, p, end, count, base, drop_tombstones, out, kept, problem)
    while count > 0:
        number_read = _read_ahead(keys, &p, end, min(count, KEYS_AHEAD), read, base, listed, problem)
        if problem[0] != NULL:
            return 0
        count -= number_read
        for i in range(number_read):
            offset = base + read[i].offset_delta
            survives = offset > latest
            if not survives and read[i].has_key and not (read[i].is_tombstone and drop_tombstones):
                if offset >= listed:
                    survives = is_last(keys, offset)
                else:
                    survives = offset >= find_slot(keys, read[i].hash).offset - 1
            if survives:
                survivors += 1
                tombstones += read[i].is_tombstone
                if read[i].timestamp_delta > max_delta:
                    max_delta = read[i].timestamp_delta
            else:
                removed += 1
                memcpy(out, run, read[i].start - run)
                out += read[i].start - run
                run = read[i].end
    if p != end:
        problem[0] = b"bytes are left over after the last record"
        return 0
    memcpy(out, run, p - run)
    out += p - run
    kept.count = survivors
    kept.removed = removed
    kept.tombstones = tombstones
    kept.max_timestamp_delta = max_delta
    return out - first


def rebase_timestamps(payload, BatchHeader header, int count, long long shift, Py_ssize_t start, Py_ssize_t end):
    """Return the records of payload[start:end] with `shift` added to each timestamp delta, after room for a header. A
    batch needs this when its base timestamp changes."""
    cdef Py_buffer view
    cdef bytearray out = bytearray()
    cdef const char *problem = NULL
    cdef Py_ssize_t size
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        # A delta of one byte may grow to ten, and the length before it to five.
        PyByteArray_Resize(out, HEADER_SIZE + end - start + count * 14)
        size = _rebase(
            <const unsigned char *>view.buf + start, <const unsigned char *>view.buf + end, count, shift,
            <unsigned char *>PyByteArray_AS_STRING(out) + HEADER_SIZE, &problem,
        )
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise corrupt_record(header, problem)
    PyByteArray_Resize(out, HEADER_SIZE + size)
    return out


cdef Py_ssize_t _rebase(
    const unsigned char *p, const unsigned char *end, int count, long long shift, unsigned char *out,
    const char **problem,
) noexcept nogil:
    cdef RecordFields record
    cdef unsigned char *first = out
    cdef const unsigned char *body
    cdef const unsigned char *rest
    cdef long long delta
    cdef int length
    while count > 0:
        count -= 1
        problem[0] = read_record(p, end, &record)
        if problem[0] != NULL:
            return 0
        body = read_varint(p, end, &length)
        rest = read_varlong(body + 1, record.end, &delta)
        # Unsigned: a delta that is not valid may overflow, which must be defined.
        delta = <long long>(<unsigned long long>delta + <unsigned long long>shift)
        out = write_varint(out, 1 + varint_size(delta) + (record.end - rest))
        out[0] = body[0]
        out = write_varint(out + 1, delta)
        memcpy(out, rest, record.end - rest)
        out += record.end - rest
        p = record.end
    return out - first


def find_key(payload, BatchHeader header, bytes key, Py_ssize_t start, Py_ssize_t end):
    """Return (offset delta, timestamp delta, size of the value or -1 for a tombstone) for each record of
    payload[start:end] that has this key."""
    cdef Py_buffer view
    cdef RecordFields record
    cdef const unsigned char *p
    cdef const unsigned char *stop
    cdef const unsigned char *key_bytes = key
    cdef Py_ssize_t length = len(key)
    cdef const char *problem
    cdef int count = header.record_count
    cdef list matches = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        p = <const unsigned char *>view.buf + start
        stop = <const unsigned char *>view.buf + end
        while count > 0:
            count -= 1
            problem = read_record(p, stop, &record)
            if problem != NULL:
                raise corrupt_record(header, problem)
            if record.key_length == length and memcmp(record.key, key_bytes, length) == 0:
                matches.append((record.offset_delta, record.timestamp_delta, record.value_length))
            p = record.end
        return matches
    finally:
        PyBuffer_Release(&view)
