# The two loops of compaction over records: where each key was last written (KeyMap), and which records of a batch stay
# (filter_batch). Nothing here knows of files or segments.
#
# Memory is random access once a record; so keys are hashed some at a time, their slots are asked for ahead, and only
# then looked at.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MIN
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from stratalog.records._framing cimport BatchHeader
from stratalog.records._record_fields cimport RecordFields, read_record
from stratalog.records._varint cimport read_varint, read_varlong, varint_size, write_varint

from stratalog.errors import CorruptBatchError

cdef extern from "siphash128.h":
    ctypedef struct Hash "strata_hash128":
        unsigned long long low
        unsigned long long high
    Hash siphash128 "strata_siphash128"(
        const unsigned char *, size_t, unsigned long long, unsigned long long
    ) noexcept nogil
    unsigned long long slot_of "strata_slot_of"(unsigned long long, unsigned long long) noexcept nogil

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *) noexcept nogil

cdef enum:
    AHEAD = 32  # keys that are hashed before the first of them is looked up
    HEADER_SIZE = 61

SLOT_SIZE = sizeof(Slot)

cdef struct Slot:
    unsigned long long low
    unsigned long long high
    long long offset  # one more than the key's last, so that 0 is a free slot


cdef struct Seen:
    Hash hash
    const unsigned char *start
    const unsigned char *end
    long long timestamp_delta
    int offset_delta
    bint has_key
    bint is_tombstone


cdef class KeyMap:
    """Keys, by their hashes, and the last offset of each. Takes `slots` * 24 bytes and never grows."""

    cdef Slot *_slots
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t most   # keys that it takes: a table that is nearly full is slow
    cdef readonly Py_ssize_t count
    cdef readonly long long latest  # the highest offset that was put in
    cdef unsigned long long _k0
    cdef unsigned long long _k1

    def __cinit__(self, Py_ssize_t slots, double load_factor, bytes seed):
        if slots < 2 or len(seed) != 16:
            raise ValueError(f"{slots} slots and a seed of {len(seed)} bytes; at least 2 and exactly 16 are needed")
        self._slots = <Slot *>calloc(slots, sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError(f"no memory for a map of {slots} keys (log.cleaner.dedupe.buffer.size)")
        self.slots = slots
        self.most = min(max(<Py_ssize_t>(slots * load_factor), 1), slots - 1)  # one slot stays free: searches end there
        self.latest = -1
        self._k0 = int.from_bytes(seed[:8], "little")
        self._k1 = int.from_bytes(seed[8:], "little")

    def __dealloc__(self):
        free(self._slots)

    def __len__(self):
        return self.count

    def clear(self):
        memset(self._slots, 0, self.slots * sizeof(Slot))
        self.count = 0
        self.latest = -1

    def get(self, bytes key):
        """The last offset of a key, or -1."""
        return self._find(siphash128(key, len(key), self._k0, self._k1)).offset - 1

    cdef Slot *_find(self, Hash hash) noexcept nogil:
        """The key's slot, or the free one where it belongs. There always is one: the table is never full."""
        cdef Slot *slot = self._slots + slot_of(hash.low, self.slots)
        cdef Slot *end = self._slots + self.slots
        while slot.offset != 0 and (slot.low != hash.low or slot.high != hash.high):
            slot += 1
            if slot == end:
                slot = self._slots
        return slot

    def put(self, bytes key, long long offset):
        """One key, or with None just the offset. False: there is no room."""
        cdef Slot *slot
        cdef Hash hash
        if key is not None:
            hash = siphash128(key, len(key), self._k0, self._k1)
            slot = self._find(hash)
            if slot.offset == 0:
                if self.count >= self.most:
                    return False
                self.count += 1
                slot.low = hash.low
                slot.high = hash.high
            slot.offset = offset + 1
        self.latest = offset
        return True

    def add(self, payload, BatchHeader header, long long from_offset, Py_ssize_t start=0, Py_ssize_t end=-1):
        """Take note of the keys of a batch: payload[start:end], inflated. Records before `from_offset` don't count.

        True: all were taken. False: there is no room, `latest` says how far it went.
        """
        cdef Py_buffer view
        cdef const char *problem = NULL
        cdef bint done
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if end < 0:
                end = view.len
            if start < 0 or start > end or end > view.len:
                raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
            with nogil:
                done = self._add(
                    <const unsigned char *>view.buf + start, <const unsigned char *>view.buf + end,
                    header.record_count, header.base_offset, from_offset, &problem,
                )
        finally:
            PyBuffer_Release(&view)
        if problem != NULL:
            raise _corrupt(header, problem)
        if done:
            self.latest = max(self.latest, header.base_offset + header.last_offset_delta)
        return done

    cdef bint _add(
        self, const unsigned char *p, const unsigned char *end, int count, long long base, long long from_offset,
        const char **problem,
    ) noexcept nogil:
        cdef Seen seen[AHEAD]
        cdef Slot *slot
        cdef int some, i
        while count > 0:
            some = _look_ahead(self, &p, end, min(count, AHEAD), seen, problem)
            if problem[0] != NULL:
                return False
            count -= some
            for i in range(some):
                if base + seen[i].offset_delta < from_offset:
                    continue
                if seen[i].has_key:
                    slot = self._find(seen[i].hash)
                    if slot.offset == 0:
                        if self.count >= self.most:
                            return False
                        self.count += 1
                        slot.low = seen[i].hash.low
                        slot.high = seen[i].hash.high
                    slot.offset = base + seen[i].offset_delta + 1
                self.latest = base + seen[i].offset_delta
        if p != end:
            problem[0] = b"bytes are left over behind the last record"
        return True


cdef int _look_ahead(
    KeyMap keys, const unsigned char **cursor, const unsigned char *end, int count, Seen *seen, const char **problem
) noexcept nogil:
    """Read up to `count` records, and have the slots of their keys brought near."""
    cdef RecordFields record
    cdef const unsigned char *p = cursor[0]
    cdef int i
    for i in range(count):
        problem[0] = read_record(p, end, &record)
        if problem[0] != NULL:
            return i
        seen[i].start = p
        seen[i].end = record.end
        seen[i].offset_delta = record.offset_delta
        seen[i].timestamp_delta = record.timestamp_delta
        seen[i].has_key = record.key_length >= 0
        seen[i].is_tombstone = record.value_length < 0
        if record.key_length >= 0:
            seen[i].hash = siphash128(record.key, record.key_length, keys._k0, keys._k1)
            prefetch(keys._slots + slot_of(seen[i].hash.low, keys.slots))
        p = record.end
    cursor[0] = p
    return count


cdef class Kept:
    """What is left of a batch: `payload` behind room for a header, or None where all records stay as they are."""

    cdef readonly int count
    cdef readonly int removed
    cdef readonly int tombstones         # among those that stay
    cdef readonly long long max_timestamp_delta
    cdef readonly bytearray payload


def filter_batch(
    payload, BatchHeader header, KeyMap keys, bint drop_tombstones, Py_ssize_t start=0, Py_ssize_t end=-1
):
    """Which records of a batch stay: the last of each key, and what lies past all that the map knows. A tombstone stays
    unless `drop_tombstones`. A record without a key goes: nothing can ever supersede it."""
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
                header.record_count, header.base_offset, drop_tombstones,
                room, kept, &problem,
            )
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise _corrupt(header, problem)
    if kept.removed:
        PyByteArray_Resize(out, HEADER_SIZE + size)
        kept.payload = out
    return kept


cdef Py_ssize_t _filter(
    KeyMap keys, const unsigned char *p, const unsigned char *end, int count, long long base, bint drop_tombstones,
    unsigned char *out, Kept kept, const char **problem,
) noexcept nogil:
    """Copies what stays, a run of neighbours at a time; how many bytes that is."""
    cdef Seen seen[AHEAD]
    cdef const unsigned char *run = p
    cdef unsigned char *first = out
    cdef long long latest = keys.latest
    cdef long long offset, max_delta = LLONG_MIN
    cdef int some, i
    cdef int stay = 0, tombstones = 0, removed = 0
    cdef bint stays
    while count > 0:
        some = _look_ahead(keys, &p, end, min(count, AHEAD), seen, problem)
        if problem[0] != NULL:
            return 0
        count -= some
        for i in range(some):
            offset = base + seen[i].offset_delta
            stays = offset > latest
            if not stays and seen[i].has_key and not (seen[i].is_tombstone and drop_tombstones):
                stays = offset >= keys._find(seen[i].hash).offset - 1
            if stays:
                stay += 1
                tombstones += seen[i].is_tombstone
                if seen[i].timestamp_delta > max_delta:
                    max_delta = seen[i].timestamp_delta
            else:
                removed += 1
                memcpy(out, run, seen[i].start - run)
                out += seen[i].start - run
                run = seen[i].end
    if p != end:
        problem[0] = b"bytes are left over behind the last record"
        return 0
    memcpy(out, run, p - run)
    out += p - run
    kept.count = stay
    kept.removed = removed
    kept.tombstones = tombstones
    kept.max_timestamp_delta = max_delta
    return out - first


def rebase_timestamps(payload, BatchHeader header, int count, long long shift, Py_ssize_t start, Py_ssize_t end):
    """The records of payload[start:end] with `shift` added to each timestamp delta, behind room for a header: for a
    batch that gets another base timestamp."""
    cdef Py_buffer view
    cdef bytearray out = bytearray()
    cdef const char *problem = NULL
    cdef Py_ssize_t size
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
        # A delta takes up to ten bytes where it took one, and the length before it up to five.
        PyByteArray_Resize(out, HEADER_SIZE + end - start + count * 14)
        size = _rebase(
            <const unsigned char *>view.buf + start, <const unsigned char *>view.buf + end, count, shift,
            <unsigned char *>PyByteArray_AS_STRING(out) + HEADER_SIZE, &problem,
        )
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise _corrupt(header, problem)
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
        # Unsigned: deltas of times that can't be may overflow, and must not be undefined.
        delta = <long long>(<unsigned long long>delta + <unsigned long long>shift)
        out = write_varint(out, 1 + varint_size(delta) + (record.end - rest))
        out[0] = body[0]
        out = write_varint(out + 1, delta)
        memcpy(out, rest, record.end - rest)
        out += record.end - rest
        p = record.end
    return out - first


def find_key(payload, BatchHeader header, bytes key, Py_ssize_t start, Py_ssize_t end):
    """The records of payload[start:end] that have this key: [(offset delta, timestamp delta, bytes of the value, -1 for a
    tombstone), ...]."""
    cdef Py_buffer view
    cdef RecordFields record
    cdef const unsigned char *p
    cdef const unsigned char *stop
    cdef const unsigned char *wanted = key
    cdef Py_ssize_t length = len(key)
    cdef const char *problem
    cdef int count = header.record_count
    cdef list found = []
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
                raise _corrupt(header, problem)
            if record.key_length == length and memcmp(record.key, wanted, length) == 0:
                found.append((record.offset_delta, record.timestamp_delta, record.value_length))
            p = record.end
        return found
    finally:
        PyBuffer_Release(&view)


cdef _corrupt(BatchHeader header, const char *problem):
    return CorruptBatchError(
        f"a record of the batch at offset {header.base_offset}: {problem.decode()}", position=header.position
    )
