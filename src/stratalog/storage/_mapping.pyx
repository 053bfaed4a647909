# A file mapped into memory, for the indexes. Python's own mmap keeps a duplicate of the descriptor open for each
# mapping. A log has two mappings per segment, and descriptors are the first resource that a process runs out of. So
# this class keeps no descriptor. It also searches in C.

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from posix.mman cimport (
    MAP_FAILED, MAP_SHARED, MS_SYNC, POSIX_MADV_RANDOM, POSIX_MADV_WILLNEED, PROT_READ, PROT_WRITE,
    mmap, msync, munmap, posix_madvise,
)

cdef extern from "sys/mman.h":
    int mincore(void *address, size_t size, unsigned char *pages) nogil

from stratalog.records._varint cimport load32, load64, store32, store64

import os

cdef long _PAGE = os.sysconf("SC_PAGE_SIZE")


cdef class Mapping:
    """A shared mapping of the first `length` bytes of an open file. Exports a buffer. Unmapped when its last reference
    goes, never explicitly.

    A store through the mapping fails with SIGBUS if the file has no block there and the disk is full, so the caller
    first calls Disk.allocate. The same happens if another process shortens the file; the directory's lock prevents it.
    """

    cdef unsigned char *_data
    cdef Py_ssize_t _length
    cdef bint _writable

    def __cinit__(self, int fd, Py_ssize_t length, bint writable):
        cdef void *data
        cdef int protection = PROT_READ | (PROT_WRITE if writable else 0)
        if length <= 0:
            raise ValueError(f"a mapping needs at least one byte, not {length}")
        data = mmap(NULL, length, protection, MAP_SHARED, fd, 0)
        if data == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self._data = <unsigned char *>data
        self._length = length
        self._writable = writable

    def __dealloc__(self):
        if self._data != NULL:
            munmap(self._data, self._length)

    def __len__(self):
        return self._length

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._data, self._length, not self._writable, flags)

    def sync(self):
        """Write changed pages to disk and wait (msync). Raises OSError."""
        cdef int failed
        with nogil:
            failed = msync(self._data, self._length, MS_SYNC)
        if failed:
            raise OSError(errno, os.strerror(errno))

    def advise_random(self):
        """Advise the kernel to read only the pages that are used, not megabytes around each. A hint only."""
        posix_madvise(self._data, self._length, POSIX_MADV_RANDOM)

    def advise_needed(self, Py_ssize_t start, Py_ssize_t end):
        """Advise the kernel to read these bytes soon. A hint only."""
        start -= start % 4096
        if 0 <= start < end <= self._length:
            posix_madvise(self._data + start, end - start, POSIX_MADV_WILLNEED)

    def is_resident(self, Py_ssize_t size):
        """Return whether the first `size` bytes are in memory, so that looking at them does not wait for a disk."""
        cdef unsigned char pages[1024]
        cdef Py_ssize_t position = 0, part, page
        size = min(size, self._length)
        while position < size:
            part = min(size - position, <Py_ssize_t>(1024 * 4096))
            if mincore(self._data + position, part, pages):
                return True  # the kernel does not say
            for page in range((part + _PAGE - 1) // _PAGE):
                if not pages[page] & 1:
                    return False
            position += part
        return True

    cdef int _check_slot(self, Py_ssize_t slot, int entry_size) except -1:
        # By division, because a product could overflow and pass the check.
        if slot < 0 or slot >= self._length // entry_size:
            raise ValueError(f"slot {slot} is outside the mapping of {self._length} bytes")
        return 0

    cdef int _check_count(self, Py_ssize_t count, int entry_size) except -1:
        if count < 0 or count > self._length // entry_size:
            raise ValueError(f"{count} entries reach outside the mapping of {self._length} bytes")
        return 0

    cdef int _check_store(self, Py_ssize_t slot, int entry_size) except -1:
        if not self._writable:
            raise ValueError("the mapping is read-only")
        return self._check_slot(slot, entry_size)

    def store_offset_entry(self, Py_ssize_t slot, unsigned int relative_offset, unsigned int position):
        self._check_store(slot, 8)
        store32(self._data + slot * 8, relative_offset)
        store32(self._data + slot * 8 + 4, position)

    def store_time_entry(self, Py_ssize_t slot, long long timestamp, unsigned int relative_offset):
        self._check_store(slot, 12)
        store64(self._data + slot * 12, <unsigned long long>timestamp)
        store32(self._data + slot * 12 + 8, relative_offset)

    def offset_entry(self, Py_ssize_t slot):
        """Return the relative offset and the position of an .index entry."""
        self._check_slot(slot, 8)
        return <int>load32(self._data + slot * 8), <int>load32(self._data + slot * 8 + 4)

    def time_entry(self, Py_ssize_t slot):
        """Return the timestamp and the relative offset of a .timeindex entry."""
        self._check_slot(slot, 12)
        return <long long>load64(self._data + slot * 12), <int>load32(self._data + slot * 12 + 8)

    cpdef Py_ssize_t floor_offset(self, Py_ssize_t count, long long relative_offset) except -2:
        """Return the slot of the last of `count` .index entries whose offset is <= relative_offset, or -1."""
        cdef Py_ssize_t low = 0, high = count, middle
        self._check_count(count, 8)
        while low < high:
            middle = (low + high) >> 1
            if <int>load32(self._data + middle * 8) <= relative_offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def floor_entry(self, Py_ssize_t count, long long base_offset, long long offset):
        """Return the offset and position of the last of `count` .index entries at or before `offset`, or None."""
        cdef Py_ssize_t slot = self.floor_offset(count, offset - base_offset)
        if slot < 0:
            return None
        return base_offset + <int>load32(self._data + slot * 8), <int>load32(self._data + slot * 8 + 4)

    def floor_time(self, Py_ssize_t count, long long timestamp):
        """Return the slot of the last of `count` .timeindex entries whose timestamp is <= timestamp, or -1."""
        cdef Py_ssize_t low = 0, high = count, middle
        self._check_count(count, 12)
        while low < high:
            middle = (low + high) >> 1
            if <long long>load64(self._data + middle * 12) <= timestamp:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def rising_offset_entries(self, Py_ssize_t count, Py_ssize_t start=0):
        """Return how many of the first `count` .index entries rise, in offset and position, from one to the next. The
        first `start` are known to."""
        cdef Py_ssize_t slot
        cdef int offset = -1, position = -1
        self._check_count(count, 8)
        if start > 0:
            self._check_slot(start - 1, 8)
            offset = <int>load32(self._data + (start - 1) * 8)
            position = <int>load32(self._data + (start - 1) * 8 + 4)
        for slot in range(max(start, 0), count):
            if <int>load32(self._data + slot * 8) <= offset or <int>load32(self._data + slot * 8 + 4) <= position:
                return slot
            offset = <int>load32(self._data + slot * 8)
            position = <int>load32(self._data + slot * 8 + 4)
        return count

    def rising_time_entries(self, Py_ssize_t count, Py_ssize_t start=0):
        """Return how many of the first `count` .timeindex entries rise, in time and offset, from one to the next. The
        first `start` are known to."""
        cdef Py_ssize_t slot
        cdef int offset = -1
        cdef long long timestamp = -1
        self._check_count(count, 12)
        if start > 0:
            self._check_slot(start - 1, 12)
            timestamp = <long long>load64(self._data + (start - 1) * 12)
            offset = <int>load32(self._data + (start - 1) * 12 + 8)
        for slot in range(max(start, 0), count):
            if <long long>load64(self._data + slot * 12) <= timestamp or <int>load32(self._data + slot * 12 + 8) <= offset:
                return slot
            timestamp = <long long>load64(self._data + slot * 12)
            offset = <int>load32(self._data + slot * 12 + 8)
        return count


# Two system calls that Python's os module lacks.

cdef extern from "fcntl.h" nogil:
    int sync_file_range(int fd, long long offset, long long nbytes, unsigned int flags)
    unsigned int SYNC_FILE_RANGE_WRITE
    int fallocate(int fd, int mode, long long offset, long long length)
    int FALLOC_FL_KEEP_SIZE


def start_writeback(int fd, long long position, long long size):
    """Ask the kernel to start writing a range of a file to disk, without waiting. Makes nothing durable. Raises
    OSError."""
    cdef int failed
    with nogil:
        failed = sync_file_range(fd, position, size, SYNC_FILE_RANGE_WRITE)
    if failed:
        raise OSError(errno, os.strerror(errno))


def preallocate(int fd, long long position, long long size):
    """Allocate blocks for a range of a file without changing the file's size. Raises OSError."""
    cdef int failed
    with nogil:
        failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, position, size)
    if failed:
        raise OSError(errno, os.strerror(errno))
