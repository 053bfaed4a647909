# The hash that chooses partitions for keys, for the other kernels.

from libc.stdint cimport uint32_t

cdef uint32_t murmur2_of(const unsigned char *data, Py_ssize_t length) noexcept nogil

# Java's choice for a key: the hash without its sign bit, modulo the number of partitions.
cdef int partition_of_key(const unsigned char *key, Py_ssize_t length, int partitions) noexcept nogil
