# The CRC-32C of `size` bytes, or of what had checksum `crc` and then those. Holds the GIL only for small ones.
cdef unsigned int crc32c_of(const unsigned char *data, Py_ssize_t size, unsigned int crc=*) except? 0

# Whether the processor does it; then it can be had without the GIL.
cdef bint crc32c_is_fast() noexcept
cdef unsigned int crc32c_fast(const unsigned char *data, Py_ssize_t size) noexcept nogil
