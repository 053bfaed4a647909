# The first loop of compaction over records: KeyMap maps each key to its last offset. It knows no files and no segments.
#
# Each record costs a random access to memory. So keys are hashed some at a time, their slots are prefetched, and only
# then looked up.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport LLONG_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from stratalog.records._framing cimport BatchHeader
from stratalog.records._varint cimport read_varint, read_varlong
from stratalog.records.format cimport CODEC_MASK, CONTROL_BIT, CURRENT_MAGIC, HEADER_SIZE, TRANSACTIONAL_BIT

from stratalog.errors import CorruptBatchError

cdef extern from *:
    """
    #include <sys/mman.h>
    /* Zeros, in large pages where the system has them: every lookup is somewhere else, and with small pages each lookup
       would miss the TLB, too. */
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
    void *map_zeros "strata_map"(size_t) noexcept nogil
    void unmap "strata_unmap"(void *, size_t) noexcept nogil

SLOT_SIZE = sizeof(Slot)


cdef struct KeyRead:
    Hash hash
    int offset_delta
    bint has_key


cdef class KeyMap:
    """Map the hash of each key to the key's last offset. A map takes `slots` * 24 bytes and never grows."""

    def __cinit__(self, Py_ssize_t slots, double load_factor, bytes seed):
        if slots < 2 or len(seed) != 16:
            raise ValueError(f"{slots} slots and a seed of {len(seed)} bytes; at least 2 and exactly 16 are needed")
        if slots < 2**56:
            self._slots = <Slot *>map_zeros(slots * sizeof(Slot))
        if self._slots == NULL:
            raise MemoryError(f"no memory for a map of {slots} keys (log.cleaner.dedupe.buffer.size)")
        self.slots = slots
        self.most = min(max(<Py_ssize_t>(slots * load_factor), 1), slots - 1)  # lookups end at a free slot: keep one
        self.latest = -1
        self._listed_from = LLONG_MAX
        self._k0 = int.from_bytes(seed[:8], "little")
        self._k1 = int.from_bytes(seed[8:], "little")

    def __dealloc__(self):
        unmap(self._slots, self.slots * sizeof(Slot))
        free(self._last_bits)

    def __len__(self):
        return self.count

    def clear(self):
        memset(self._slots, 0, self.slots * sizeof(Slot))
        self.count = 0
        self.latest = -1
        self._forget_list()

    def get(self, bytes key):
        """Return the last offset of a key, or -1 for an unknown key."""
        return find_slot(self, identity(key, len(key), self._k0, self._k1)).offset - 1

    cdef void _forget_list(self) noexcept:
        free(self._last_bits)
        self._last_bits = NULL
        self._listed_from = LLONG_MAX

    def list_last(self, long long start, Py_ssize_t most_bytes):
        """List the offsets from `start` on that are some key's last offset, one bit per offset, if that takes at most
        `most_bytes`. The filter then looks up no key at or after `start`. Call this after all keys were added: adding
        drops the list."""
        cdef Slot *slot
        cdef Slot *end = self._slots + self.slots
        cdef unsigned long long bit
        self._forget_list()
        if start < 0 or self.latest < start or (self.latest - start) // 8 >= most_bytes:
            return
        self._last_bits = <unsigned char *>calloc((self.latest - start) // 8 + 1, 1)
        if self._last_bits == NULL:
            return
        self._listed_from = start
        with nogil:
            slot = self._slots
            while slot < end:
                if slot.offset > start:
                    bit = slot.offset - 1 - start
                    self._last_bits[bit >> 3] |= 1 << (bit & 7)
                slot += 1

    def skip_dead(self, list headers, Py_ssize_t first):
        """Return the index of the next batch, from headers[first] on, that may keep a record, or that may have to stay
        for its producer's sake. The batches before it need not be read."""
        cdef BatchHeader header
        cdef long long last
        if self._last_bits == NULL:
            return first
        while first < len(headers):
            header = headers[first]
            last = header.base_offset + header.last_offset_delta
            if header.magic != CURRENT_MAGIC or header.producer_id >= 0 or header.attributes & CONTROL_BIT:
                break
            if header.base_offset < self._listed_from or last > self.latest:
                break
            if has_last(self, header.base_offset, last):
                break
            first += 1
        return first

    def put(self, bytes key, long long offset):
        """Add one key with its offset, or with None only the offset. Return False if there is no room."""
        cdef Slot *slot
        cdef Hash hash
        self._forget_list()
        if key is not None:
            hash = identity(key, len(key), self._k0, self._k1)
            slot = find_slot(self, hash)
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
        """Call add() for the batches of a buffer from headers[first] on, and return how many were added. Stop before a
        batch that is compressed, transactional, a control batch, of an old format, or that there is no room for."""
        cdef Py_buffer view
        cdef BatchHeader header
        cdef const unsigned char *batch
        cdef const char *problem = NULL
        cdef Py_ssize_t index
        cdef bint is_complete
        self._forget_list()
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            for index in range(first, len(headers)):
                header = headers[index]
                if header.magic != CURRENT_MAGIC or header.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
                    return index - first
                if header.position < 0 or header.size < HEADER_SIZE or header.position + header.size > view.len:
                    raise ValueError(f"the batch at position {header.position} goes past {view.len} bytes")
                batch = <const unsigned char *>view.buf + header.position
                with nogil:
                    is_complete = self._add(
                        batch + HEADER_SIZE, batch + header.size, header.record_count, header.base_offset,
                        from_offset, &problem,
                    )
                if problem != NULL:
                    raise corrupt_record(header, problem)
                if not is_complete:
                    return index - first
                self.latest = max(self.latest, header.base_offset + header.last_offset_delta)
            return len(headers) - first
        finally:
            PyBuffer_Release(&view)

    def add(self, payload, BatchHeader header, long long from_offset, Py_ssize_t start=0, Py_ssize_t end=-1):
        """Add the keys of one batch, whose decompressed records are payload[start:end]. Ignore records before
        `from_offset`. Return whether all keys were added; if there was no room, `latest` is the last offset that was.
        """
        cdef Py_buffer view
        cdef const char *problem = NULL
        cdef bint is_complete
        self._forget_list()
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if end < 0:
                end = view.len
            if start < 0 or start > end or end > view.len:
                raise ValueError(f"range {start}..{end} is outside the buffer of {view.len} bytes")
            with nogil:
                is_complete = self._add(
                    <const unsigned char *>view.buf + start, <const unsigned char *>view.buf + end,
                    header.record_count, header.base_offset, from_offset, &problem,
                )
        finally:
            PyBuffer_Release(&view)
        if problem != NULL:
            raise corrupt_record(header, problem)
        if is_complete:
            self.latest = max(self.latest, header.base_offset + header.last_offset_delta)
        return is_complete

    cdef bint _add(
        self, const unsigned char *p, const unsigned char *end, int count, long long base, long long from_offset,
        const char **problem,
    ) noexcept nogil:
        cdef KeyRead read[KEYS_AHEAD]
        cdef Slot *slot
        cdef int number_read, i
        while count > 0:
            number_read = _read_keys(self, &p, end, min(count, KEYS_AHEAD), read, problem)
            if problem[0] != NULL:
                return False
            count -= number_read
            for i in range(number_read):
                if base + read[i].offset_delta < from_offset:
                    continue
                if read[i].has_key:
                    slot = find_slot(self, read[i].hash)
                    if slot.offset == 0:
                        if self.count >= self.most:
                            return False
                        self.count += 1
                        slot.low = read[i].hash.low
                        slot.high = read[i].hash.high
                    slot.offset = base + read[i].offset_delta + 1
                self.latest = base + read[i].offset_delta
        if p != end:
            problem[0] = b"bytes are left over after the last record"
        return True


cdef int _read_keys(
    KeyMap keys, const unsigned char **cursor, const unsigned char *end, int count, KeyRead *read, const char **problem
) noexcept nogil:
    """Read the offset and the key of `count` records, move the cursor after them, and return how many were read. The
    rest of each record is not checked. With a problem, the cursor stays where it was."""
    cdef const unsigned char *p = cursor[0]
    cdef const unsigned char *record_end
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
            p = read_varint(p, record_end, &read[i].offset_delta)
        if p != NULL:
            p = read_varint(p, record_end, &key_length)
        if p == NULL or key_length < -1 or key_length > record_end - p:
            problem[0] = b"key length goes past the end of the record"
            return i
        read[i].has_key = key_length >= 0
        if key_length >= 0:
            read[i].hash = hash_ahead(keys, p, key_length)
        p = record_end
    cursor[0] = p
    return count


cdef corrupt_record(BatchHeader header, const char *problem):
    return CorruptBatchError(
        f"a record of the batch at offset {header.base_offset}: {problem.decode()}", position=header.position
    )
