# Return the CRC-32C of `size` bytes, or of the data with checksum `crc` followed by them. Releases the GIL for large
# data.
cdef unsigned int crc32c_of(const unsigned char *data, Py_ssize_t size, unsigned int crc=*) except? 0

# Return whether the processor has the instructions; crc32c_fast needs them, and no GIL.
cdef bint crc32c_is_fast() noexcept
cdef unsigned int crc32c_fast(const unsigned char *data, Py_ssize_t size) noexcept nogil
