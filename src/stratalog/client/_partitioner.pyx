# Murmur2 as Kafka's Java client computes it (32 bits, seed 0x9747b28c), so that a key goes to the same partition from
# any client. tests/golden/java-partitions.bin has Java's partitions of 10,000 keys.

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

cdef enum:
    _MIX = 0x5BD1E995
    _SHIFT = 24
    _SEED = 0x9747B28C


cdef uint32_t murmur2_of(const unsigned char *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t mixed = <uint32_t> _SEED ^ <uint32_t> length
    cdef uint32_t word
    cdef Py_ssize_t position = 0
    while position + 4 <= length:
        memcpy(&word, data + position, 4)  # little-endian, like the machines that this runs on
        word *= <uint32_t> _MIX
        word ^= word >> _SHIFT
        word *= <uint32_t> _MIX
        mixed = (mixed * <uint32_t> _MIX) ^ word
        position += 4
    if length - position == 3:
        mixed ^= <uint32_t> data[position + 2] << 16
    if length - position >= 2:
        mixed ^= <uint32_t> data[position + 1] << 8
    if length - position >= 1:
        mixed ^= data[position]
        mixed *= <uint32_t> _MIX
    mixed ^= mixed >> 13
    mixed *= <uint32_t> _MIX
    return mixed ^ (mixed >> 15)


cdef int partition_of_key(const unsigned char *key, Py_ssize_t length, int partitions) noexcept nogil:
    return <int> ((murmur2_of(key, length) & 0x7FFFFFFF) % <uint32_t> partitions)


def murmur2(bytes data not None):
    """Return the hash as Java returns it: a signed 32-bit int."""
    return <int> murmur2_of(<const unsigned char *> <const char *> data, len(data))


def partition_for_key(bytes key not None, int partitions):
    """Return the partition, of this number of partitions, that a record with this key goes to."""
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}; it must be at least 1")
    return partition_of_key(<const unsigned char *> <const char *> key, len(key), partitions)
