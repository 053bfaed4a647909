# A set of keys that a scan looks up for each record, without Python. It compares lengths first, which exclude most
# keys. The slots point into bytes objects that the owner of the set keeps.

from libc.stdlib cimport calloc
from libc.string cimport memcmp

cdef enum:
    MOST_LENGTHS = 64


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t strata_key_hash(const unsigned char *p, int length) {
        uint64_t hash = 0x9E3779B97F4A7C15ull * (uint64_t)(length + 1), word;
        while (length >= 8) {
            memcpy(&word, p, 8);
            hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
            hash ^= hash >> 32;
            p += 8; length -= 8;
        }
        word = 0;
        memcpy(&word, p, length);
        hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
        return hash ^ (hash >> 29);
    }
    """
    unsigned long long key_hash "strata_key_hash"(const unsigned char *p, int length) nogil


cdef struct KeySlot:
    const unsigned char *key  # NULL: free
    int length


cdef struct KeySet:
    KeySlot *slots               # the owner frees them
    unsigned long long mask
    unsigned long long lengths   # bit n: some key has length n modulo 64
    const unsigned char *only    # the key of a set with one key
    int only_length
    bint has_one_key


cdef inline int fill_keys(KeySet *keys, list held) except -1:
    """Fill a set that is all zeros. `held` has bytes objects without duplicates."""
    cdef bytes key
    cdef unsigned long long slot
    keys.mask = 15
    while keys.mask < 2 * <unsigned long long>len(held):
        keys.mask = keys.mask * 2 + 1
    keys.slots = <KeySlot *>calloc(keys.mask + 1, sizeof(KeySlot))
    if keys.slots == NULL:
        raise MemoryError
    for key in held:
        if key is None:
            raise TypeError("a key is bytes, not None")
        keys.lengths |= 1ull << (len(key) % MOST_LENGTHS)
        slot = key_hash(key, <int>len(key)) & keys.mask
        while keys.slots[slot].key != NULL:
            slot = (slot + 1) & keys.mask
        keys.slots[slot].key = key
        keys.slots[slot].length = <int>len(key)
        keys.only = key
        keys.only_length = <int>len(key)
    keys.has_one_key = len(held) == 1
    return 0


cdef inline bint has_key(KeySet *keys, const unsigned char *key, int length) noexcept nogil:
    """Return whether the set has a key. Length -1 is null, which no set has."""
    cdef unsigned long long slot
    if keys.has_one_key:
        return length == keys.only_length and memcmp(key, keys.only, length) == 0
    if length < 0 or not (keys.lengths >> (length % MOST_LENGTHS)) & 1:
        return False
    slot = key_hash(key, length) & keys.mask
    while keys.slots[slot].key != NULL:
        if keys.slots[slot].length == length and memcmp(keys.slots[slot].key, key, length) == 0:
            return True
        slot = (slot + 1) & keys.mask
    return False
