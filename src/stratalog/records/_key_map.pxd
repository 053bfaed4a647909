# The table of a KeyMap, for the loops over records: these functions are inlined into the kernels that use them.

from stratalog.records._framing cimport BatchHeader

cdef extern from "siphash128.h":
    ctypedef struct Hash "strata_hash128":
        unsigned long long low
        unsigned long long high
    Hash identity "strata_identity"(
        const unsigned char *, size_t, unsigned long long, unsigned long long
    ) noexcept nogil
    unsigned long long slot_of "strata_slot_of"(unsigned long long, unsigned long long) noexcept nogil

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *) noexcept nogil

cdef enum:
    KEYS_AHEAD = 32  # keys that are hashed before the first of them is looked up


cdef struct Slot:
    unsigned long long low
    unsigned long long high
    long long offset  # one more than the key's last offset, so that 0 is a free slot


cdef class KeyMap:
    cdef Slot *_slots
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t most      # the limit of keys: a table that is nearly full is slow
    cdef readonly Py_ssize_t count
    cdef readonly long long latest     # the highest offset that was added
    cdef unsigned long long _k0
    cdef unsigned long long _k1
    cdef unsigned char *_last_bits     # one bit per offset from _listed_from to `latest`: is it some key's last offset?
    cdef long long _listed_from        # LLONG_MAX without a list

    cdef void _forget_list(self) noexcept
    cdef bint _add(
        self, const unsigned char *p, const unsigned char *end, int count, long long base, long long from_offset,
        const char **problem,
    ) noexcept nogil


cdef inline Hash hash_ahead(KeyMap keys, const unsigned char *key, int length) noexcept nogil:
    """Hash a key and prefetch its slot."""
    cdef Hash hash = identity(key, length, keys._k0, keys._k1)
    cdef Slot *slot = keys._slots + slot_of(hash.low, keys.slots)
    prefetch(slot)
    prefetch(<const char *>slot + sizeof(Slot) - 1)  # one slot in four spans two cache lines
    return hash


cdef inline Slot *find_slot(KeyMap keys, Hash hash) noexcept nogil:
    """Return the key's slot, or the free slot where it belongs. The table is never full, so there always is one."""
    cdef Slot *slot = keys._slots + slot_of(hash.low, keys.slots)
    cdef Slot *end = keys._slots + keys.slots
    while slot.offset != 0 and (slot.low != hash.low or slot.high != hash.high):
        slot += 1
        if slot == end:
            slot = keys._slots
    return slot


cdef inline bint is_last(KeyMap keys, long long offset) noexcept nogil:
    """Return whether an offset in the list is some key's last offset."""
    cdef unsigned long long bit = offset - keys._listed_from
    return (keys._last_bits[bit >> 3] >> (bit & 7)) & 1


cdef inline bint has_last(KeyMap keys, long long first, long long last) noexcept nogil:
    """Return whether any offset from `first` to `last` is some key's last offset. All must be in the list."""
    while first <= last and (first - keys._listed_from) & 7:
        if is_last(keys, first):
            return True
        first += 1
    while first + 7 <= last:
        if keys._last_bits[(first - keys._listed_from) >> 3]:
            return True
        first += 8
    while first <= last:
        if is_last(keys, first):
            return True
        first += 1
    return False


cdef corrupt_record(BatchHeader header, const char *problem)
