# Memory for columns in Arrow's layout. Columns that are written grow; columns that are read are checked against their
# buffers. All functions are inline and run without Python, for the loops of both kernels.

from libc.limits cimport INT_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from stratalog.records._varint cimport write_varint

cdef enum:
    HUGE = 4194304  # memory of this size and more may be in huge pages of 2 MiB


cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    static inline void strata_prefer_huge_pages(void *data, size_t size) {
    #ifdef MADV_HUGEPAGE
        uintptr_t begin = ((uintptr_t)data + 4095) & ~(uintptr_t)4095;
        uintptr_t end = ((uintptr_t)data + size) & ~(uintptr_t)4095;
        if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    #endif
    }
    """
    void prefer_huge_pages "strata_prefer_huge_pages"(void *data, size_t size) nogil


cdef struct Memory:
    unsigned char *data
    size_t size
    size_t capacity


cdef inline int grow(Memory *memory, size_t extra) noexcept nogil:
    """Make room for `extra` more bytes. Return 0, or -1 without memory."""
    cdef size_t needed = memory.size + extra
    cdef void *data
    if needed <= memory.capacity:
        return 0
    if needed < memory.capacity * 2:
        needed = memory.capacity * 2
    data = realloc(memory.data, needed)
    if data == NULL:
        return -1
    if needed >= HUGE:
        # Columns are filled once, in new memory: with small pages, page faults would cost more than the decoding.
        prefer_huge_pages(data, needed)
    memory.data = <unsigned char *>data
    memory.capacity = needed
    return 0


cdef struct BinaryOut:
    Memory offsets    # i32, one more than rows
    Memory data
    Memory validity   # bits, 1: not null
    Py_ssize_t rows
    Py_ssize_t nulls


cdef inline int make_room(BinaryOut *column, size_t rows, size_t content) noexcept nogil:
    """Make room for more rows with `content` bytes in total. Return 0, or -1 without memory."""
    cdef size_t validity_size = (column.rows + rows + 7) // 8
    cdef size_t old_size = column.validity.size
    column.offsets.size = column.rows * sizeof(int)
    if grow(&column.offsets, (rows + 1) * sizeof(int)) or grow(&column.data, content):
        return -1
    if validity_size > old_size:
        if grow(&column.validity, validity_size - old_size):
            return -1
        memset(column.validity.data + old_size, 0xFF, validity_size - old_size)
        column.validity.size = validity_size
    return 0


cdef inline void put(BinaryOut *column, const unsigned char *content, int length) noexcept nogil:
    """Append one value; the caller made room. Length -1 is null."""
    (<int *>column.offsets.data)[column.rows] = <int>column.data.size
    if length > 0:
        memcpy(column.data.data + column.data.size, content, length)
        column.data.size += length
    elif length < 0:
        column.validity.data[column.rows >> 3] &= ~(1 << (column.rows & 7))
        column.nulls += 1
    column.rows += 1


cdef inline void free_binary(BinaryOut *column) noexcept:
    free(column.offsets.data)
    free(column.data.data)
    free(column.validity.data)


cdef struct BinaryIn:
    const unsigned char *validity  # NULL: no nulls
    const void *offsets
    const unsigned char *data
    Py_ssize_t data_size
    Py_ssize_t start               # first row of the slice
    Py_ssize_t rows
    bint is_large


cdef inline long long offset_at(BinaryIn *column, Py_ssize_t row) noexcept nogil:
    if column.is_large:
        return (<const long long *>column.offsets)[row]
    return (<const int *>column.offsets)[row]


cdef inline int take(BinaryIn *column, Py_ssize_t row, const unsigned char **content) noexcept nogil:
    """Return the length of a value, and set `content` to its bytes. Return -1 for null, -2 if the offsets are not
    valid."""
    cdef long long begin, end
    row += column.start
    if column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    begin = offset_at(column, row)
    end = offset_at(column, row + 1)
    if begin < 0 or end < begin or end > column.data_size or end - begin > INT_MAX:
        return -2
    content[0] = column.data + begin
    return <int>(end - begin)


cdef inline unsigned char *write_bytes(unsigned char *p, const unsigned char *content, int length) noexcept nogil:
    """Write a length, where -1 is null, and the bytes. Return the position after them."""
    p = write_varint(p, length)
    if length > 0:
        memcpy(p, content, length)
        p += length
    return p


cdef inline unsigned char *write_content(unsigned char *p, BinaryIn *column, Py_ssize_t row) noexcept nogil:
    cdef const unsigned char *content = NULL
    cdef int length = -1
    if column.offsets != NULL:
        length = take(column, row, &content)
    return write_bytes(p, content, length)


cdef inline Py_ssize_t span(BinaryIn *column, Py_ssize_t start) noexcept nogil:
    """Return the bytes of the rows from `start` on, with nulls; at least 0, also if the offsets are not valid."""
    if column.offsets == NULL:
        return 0
    return max(0, offset_at(column, column.start + column.rows) - offset_at(column, column.start + start))


cdef inline bint is_utf8(const unsigned char *p, Py_ssize_t length) noexcept nogil:
    """Return whether the bytes are UTF-8 as Unicode defines it: no overlong forms, surrogates or code points after
    U+10FFFF."""
    cdef const unsigned char *end = p + length
    cdef unsigned char lead, lowest, highest
    cdef int more
    while p < end:
        lead = p[0]
        p += 1
        if lead < 0x80:
            continue
        lowest = 0x80
        highest = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                lowest = 0xA0
            elif lead == 0xED:
                highest = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                lowest = 0x90
            elif lead == 0xF4:
                highest = 0x8F
        else:
            return False
        if end - p < more or p[0] < lowest or p[0] > highest:
            return False
        p += 1
        for more in range(more - 1):
            if p[0] < 0x80 or p[0] > 0xBF:
                return False
            p += 1
    return True
