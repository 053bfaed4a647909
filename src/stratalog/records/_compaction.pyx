# The two loops of compaction over records: where each key was last written (KeyMap), and which records of a batch stay
# (filter_batch). Nothing here knows of files or segments.
#
# Memory is random access once a record; so keys are hashed some at a time, their slots are asked for ahead, and only
# then looked at.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MAX, LLONG_MIN
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from stratalog.records._crc32c cimport crc32c_of
from stratalog.records._framing cimport BatchHeader, checksum, fill_header
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

from stratalog.errors import CorruptBatchError

cdef extern from "siphash128.h":
    ctypedef struct Hash "strata_hash128":
        unsigned long long low
        unsigned long long high
    Hash identity "strata_identity"(
        const unsigned char *, size_t, unsigned long long, unsigned long long
    ) noexcept nogil
    unsigned long long slot_of "strata_slot_of"(unsigned long long, unsigned long long) noexcept nogil

cdef extern from *:
    """
    #include <sys/mman.h>
    /* Zeros, in large pages where the system has them: every look-up is at another place, and with small pages each
       would have to find its page first. */
    static void *strata_map(size_t size) {
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return NULL;
    #ifdef MADV_HUGEPAGE
        madvise(p, size, MADV_HUGEPAGE);
    #endif
        return p;
    }
    static void strata_unmap(void *p, size_t size) { if (p != NULL) munmap(p, size); }
    """
    void prefetch "__builtin_prefetch"(const void *) noexcept nogil
    void *map_zeros "strata_map"(size_t) noexcept nogil
    void unmap "strata_unmap"(void *, size_t) noexcept nogil

cdef enum:
    AHEAD = 32  # keys that are hashed before the first of them is looked up

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
    cdef unsigned char *_last          # a bit an offset from _last_from to `latest`: whether it is some key's last
    cdef long long _last_from

    def __cinit__(self, Py_ssize_t slots, double load_factor, bytes seed):
        if slots < 2 or len(seed) != 16:
            raise ValueError(f"{slots} slots and a seed of {len(seed)} bytes; at least 2 and exactly 16 are needed")
        if slots < 2**56:
            self._slots = <Slot *>map_zeros(slots * sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError(f"no memory for a map of {slots} keys (log.cleaner.dedupe.buffer.size)")
        self.slots = slots
        self.most = min(max(<Py_ssize_t>(slots * load_factor), 1), slots - 1)  # one slot stays free: searches end there
        self.latest = -1
        self._last_from = LLONG_MAX
        self._k0 = int.from_bytes(seed[:8], "little")
        self._k1 = int.from_bytes(seed[8:], "little")

    def __dealloc__(self):
        unmap(self._slots, self.slots * sizeof(Slot))
        free(self._last)

    def __len__(self):
        return self.count

    def clear(self):
        memset(self._slots, 0, self.slots * sizeof(Slot))
        self.count = 0
        self.latest = -1
        self._forget_list()

    def get(self, bytes key):
        """The last offset of a key, or -1."""
        return self._find(identity(key, len(key), self._k0, self._k1)).offset - 1

    cdef Slot *_find(self, Hash hash) noexcept nogil:
        """The key's slot, or the free one where it belongs. There always is one: the table is never full."""
        cdef Slot *slot = self._slots + slot_of(hash.low, self.slots)
        cdef Slot *end = self._slots + self.slots
        while slot.offset != 0 and (slot.low != hash.low or slot.high != hash.high):
            slot += 1
            if slot == end:
                slot = self._slots
        return slot

    cdef void _forget_list(self) noexcept:
        free(self._last)
        self._last = NULL
        self._last_from = LLONG_MAX

    def list_last(self, long long start, Py_ssize_t most_bytes):
        """No more is put in: list the offsets from `start` on that are some key's last, a bit each, if that takes no
        more than so many bytes. With the list, no key behind `start` has to be hashed and found again."""
        cdef Slot *slot
        cdef Slot *end = self._slots + self.slots
        cdef unsigned long long at
        self._forget_list()
        if start < 0 or self.latest < start or (self.latest - start) // 8 >= most_bytes:
            return
        self._last = <unsigned char *>calloc((self.latest - start) // 8 + 1, 1)
        if self._last == NULL:
            return
        self._last_from = start
        with nogil:
            slot = self._slots
            while slot < end:
                if slot.offset > start:
                    at = slot.offset - 1 - start
                    self._last[at >> 3] |= 1 << (at & 7)
                slot += 1

    cdef bint _is_last(self, long long offset) noexcept nogil:
        cdef unsigned long long at = offset - self._last_from
        return (self._last[at >> 3] >> (at & 7)) & 1

    cdef bint _has_last(self, long long first, long long last) noexcept nogil:
        """Whether any of these offsets is some key's last; all are in the list."""
        while first <= last and (first - self._last_from) & 7:
            if self._is_last(first):
                return True
            first += 1
        while first + 7 <= last:
            if self._last[(first - self._last_from) >> 3]:
                return True
            first += 8
        while first <= last:
            if self._is_last(first):
                return True
            first += 1
        return False

    def skip_dead(self, list headers, Py_ssize_t first):
        """The index of the next batch, from headers[first] on, that may have a record that stays, or may have to stay
        for its producer's sake: the others need not be looked at."""
        cdef BatchHeader header
        cdef long long last
        if self._last == NULL:
            return first
        while first < len(headers):
            header = headers[first]
            last = header.base_offset + header.last_offset_delta
            if header.magic != CURRENT_MAGIC or header.producer_id >= 0 or header.attributes & CONTROL_BIT:
                break
            if header.base_offset < self._last_from or last > self.latest or self._has_last(header.base_offset, last):
                break
            first += 1
        return first

    def put(self, bytes key, long long offset):
        """One key, or with None just the offset. False: there is no room."""
        cdef Slot *slot
        cdef Hash hash
        self._forget_list()
        if key is not None:
            hash = identity(key, len(key), self._k0, self._k1)
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

    def add_batches(self, buffer, list headers, Py_ssize_t first, long long from_offset):
        """add() for the batches of a buffer from headers[first] on, up to one that is compressed, or of a transaction,
        or of an old format, or that there is no room for. How many were taken."""
        cdef Py_buffer view
        cdef BatchHeader header
        cdef const unsigned char *batch
        cdef const char *problem = NULL
        cdef Py_ssize_t at
        cdef bint done
        self._forget_list()
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            for at in range(first, len(headers)):
                header = headers[at]
                if header.magic != CURRENT_MAGIC or header.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
                    return at - first
                if header.position < 0 or header.size < HEADER_SIZE or header.position + header.size > view.len:
                    raise ValueError(f"the batch at position {header.position} goes past {view.len} bytes")
                batch = <const unsigned char *>view.buf + header.position
                with nogil:
                    done = self._add(
                        batch + HEADER_SIZE, batch + header.size, header.record_count, header.base_offset,
                        from_offset, &problem,
                    )
                if problem != NULL:
                    raise _corrupt(header, problem)
                if not done:
                    return at - first
                self.latest = max(self.latest, header.base_offset + header.last_offset_delta)
            return len(headers) - first
        finally:
            PyBuffer_Release(&view)

    def add(self, payload, BatchHeader header, long long from_offset, Py_ssize_t start=0, Py_ssize_t end=-1):
        """Take note of the keys of a batch: payload[start:end], decompressed. Records before `from_offset` don't count.

        True: all were taken. False: there is no room, `latest` says how far it went.
        """
        cdef Py_buffer view
        cdef const char *problem = NULL
        cdef bint done
        self._forget_list()
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
            some = _look_at_keys(self, &p, end, min(count, AHEAD), seen, problem)
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


cdef int _look_at_keys(
    KeyMap keys, const unsigned char **cursor, const unsigned char *end, int count, Seen *seen, const char **problem
) noexcept nogil:
    """_look_ahead() for what a map of keys needs: of a record no more is read than its offset and its key."""
    cdef const unsigned char *p = cursor[0]
    cdef const unsigned char *record_end
    cdef Slot *slot
    cdef long long timestamp_delta
    cdef int i, length, key_length
    for i in range(count):
        p = read_varint(p, end, &length)
        if p == NULL or length < 1 or length > end - p:
            problem[0] = b"length goes past the end of the batch"
            return i
        record_end = p + length
        p = read_varlong(p + 1, record_end, &timestamp_delta)
        if p != NULL:
            p = read_varint(p, record_end, &seen[i].offset_delta)
        if p != NULL:
            p = read_varint(p, record_end, &key_length)
        if p == NULL or key_length < -1 or key_length > record_end - p:
            problem[0] = b"key length goes past the end of the record"
            return i
        seen[i].has_key = key_length >= 0
        if key_length >= 0:
            seen[i].hash = identity(p, key_length, keys._k0, keys._k1)
            slot = keys._slots + slot_of(seen[i].hash.low, keys.slots)
            prefetch(slot)
            prefetch(<const char *>slot + sizeof(Slot) - 1)  # one in four lies on two lines of the cache
        p = record_end
    cursor[0] = p
    return count


cdef int _look_ahead(
    KeyMap keys, const unsigned char **cursor, const unsigned char *end, int count, Seen *seen, long long base,
    long long below, const char **problem,
) noexcept nogil:
    """Read up to `count` records, and have the slots of the keys whose offsets are `below` brought near."""
    cdef RecordFields record
    cdef const unsigned char *p = cursor[0]
    cdef Slot *slot
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
        if record.key_length >= 0 and base + record.offset_delta < below:
            seen[i].hash = identity(record.key, record.key_length, keys._k0, keys._k1)
            slot = keys._slots + slot_of(seen[i].hash.low, keys.slots)
            prefetch(slot)
            prefetch(<const char *>slot + sizeof(Slot) - 1)
        p = record.end
    cursor[0] = p
    return count


cdef class Kept:
    """What is left of a batch: `payload` behind room for a header, or None where all records stay as they are."""

    cdef readonly int count
    cdef readonly int removed
    cdef readonly int tombstones         # among those that stay
    cdef readonly long long max_timestamp_delta
    cdef readonly long long max_timestamp  # for the header of a batch with those that stay
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
                header.record_count, header.base_offset, header.last_offset_delta, drop_tombstones,
                room, kept, &problem,
            )
    finally:
        PyBuffer_Release(&view)
    if problem != NULL:
        raise _corrupt(header, problem)
    kept.max_timestamp = _max_timestamp(header, kept)
    if kept.removed:
        PyByteArray_Resize(out, HEADER_SIZE + size)
        kept.payload = out
    return kept


def reseal(bytearray batch, buffer, BatchHeader header, int record_count, long long max_timestamp):
    """Give records behind room for a header the one of the batch that they come from, which lies in `buffer`, but for
    its length, count, largest time and checksum. For what is not compressed."""
    cdef Py_buffer view
    cdef unsigned char *out = <unsigned char *>PyByteArray_AS_STRING(batch)
    cdef Py_ssize_t size = len(batch)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if size < HEADER_SIZE or header.position < 0 or header.position + HEADER_SIZE > view.len:
            raise ValueError(f"no room for a header in {size} bytes, or none at {header.position} of {view.len} bytes")
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
    """What stays of the batches from headers[first] on: their bytes behind `out`, their headers behind `kept_headers`.

    Up to a batch that takes a closer look: one that is compressed, or a producer's, or of an old format, or damaged, or
    has a tombstone but no horizon yet. Returns its index, and whether anything before it was left out.
    """
    cdef Py_buffer view
    cdef BatchHeader header, changed_header
    cdef Kept kept = Kept.__new__(Kept)
    cdef const unsigned char *batch
    cdef unsigned char *room
    cdef const char *problem = NULL
    cdef Py_ssize_t at = first, before, size
    cdef long long last
    cdef bint changed = False, drop
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while at < len(headers):
            header = headers[at]
            if header.magic != CURRENT_MAGIC or header.producer_id >= 0:
                break
            if header.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
                break
            last = header.base_offset + header.last_offset_delta
            if header.base_offset >= keys._last_from and last <= keys.latest:
                if not keys._has_last(header.base_offset, last):
                    changed = True
                    at += 1
                    continue
            if header.position < 0 or header.size < HEADER_SIZE or header.position + header.size > view.len:
                raise ValueError(f"the batch at position {header.position} goes past {view.len} bytes")
            batch = <const unsigned char *>view.buf + header.position
            if checksum(batch, header) != header.crc:
                break
            drop = header.attributes & DELETE_HORIZON_BIT and header.base_timestamp <= now_ms
            before = len(out)
            PyByteArray_Resize(out, before + header.size)
            room = <unsigned char *>PyByteArray_AS_STRING(out) + before + HEADER_SIZE
            with nogil:
                size = HEADER_SIZE + _filter(
                    keys, batch + HEADER_SIZE, batch + header.size, header.record_count, header.base_offset,
                    header.last_offset_delta, drop, room, kept, &problem,
                )
            if problem != NULL or (kept.tombstones and not header.attributes & DELETE_HORIZON_BIT):
                PyByteArray_Resize(out, before)
                break
            at += 1
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
        return at, changed
    finally:
        PyBuffer_Release(&view)


cdef long long _max_timestamp(BatchHeader header, Kept kept) noexcept:
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return header.max_timestamp
    # Unsigned: times that can't be may overflow, and must not be undefined.
    return <long long>(<unsigned long long>header.base_timestamp + <unsigned long long>kept.max_timestamp_delta)


cdef Py_ssize_t _filter_listed(
    KeyMap keys, const unsigned char *p, const unsigned char *end, int count, long long base, bint drop_tombstones,
    unsigned char *out, Kept kept, const char **problem,
) noexcept nogil:
    """_filter() where all offsets are in the list: of a record that goes, no more is read than where it ends."""
    cdef RecordFields record
    cdef const unsigned char *run = p
    cdef unsigned char *first = out
    cdef const unsigned char *body
    cdef const unsigned char *record_end
    cdef long long timestamp_delta, max_delta = LLONG_MIN
    cdef int length, offset_delta
    cdef int stay = 0, tombstones = 0, removed = 0
    cdef bint stays
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
            problem[0] = b"offset delta can't be read, or lies outside the batch"
            return 0
        stays = keys._is_last(base + offset_delta)
        if stays:
            problem[0] = read_record(p, end, &record)
            if problem[0] != NULL:
                return 0
            stays = record.value_length >= 0 or not drop_tombstones
            stays = stays and record.key_length >= 0  # an offset that is twice in a batch is damage, but was let in
        if stays:
            stay += 1
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
        problem[0] = b"bytes are left over behind the last record"
        return 0
    memcpy(out, run, p - run)
    out += p - run
    kept.count = stay
    kept.removed = removed
    kept.tombstones = tombstones
    kept.max_timestamp_delta = max_delta
    return out - first


cdef Py_ssize_t _filter(
    KeyMap keys, const unsigned char *p, const unsigned char *end, int count, long long base, int last_delta,
    bint drop_tombstones, unsigned char *out, Kept kept, const char **problem,
) noexcept nogil:
    """Copies what stays, a run of neighbours at a time; how many bytes that is."""
    cdef Seen seen[AHEAD]
    cdef const unsigned char *run = p
    cdef unsigned char *first = out
    cdef long long latest = keys.latest
    cdef long long listed = keys._last_from
    cdef long long offset, max_delta = LLONG_MIN
    cdef int some, i
    cdef int stay = 0, tombstones = 0, removed = 0
    cdef bint stays
    if base >= listed and base + last_delta <= latest:
        return _filter_listed(keys, p, end, count, base, drop_tombstones, out, kept, problem)
    while count > 0:
        some = _look_ahead(keys, &p, end, min(count, AHEAD), seen, base, listed, problem)
        if problem[0] != NULL:
            return 0
        count -= some
        for i in range(some):
            offset = base + seen[i].offset_delta
            stays = offset > latest
            if not stays and seen[i].has_key and not (seen[i].is_tombstone and drop_tombstones):
                if offset >= listed:
                    stays = keys._is_last(offset)
                else:
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
