# Whether a range of a file is in the page cache, so that reading or sending it does not wait for a disk.
#
# cachestat(2) (Linux 6.5) answers for a whole range at once. On an older kernel, a byte of every 128 KiB is read with
# RWF_NOWAIT, which fails where the kernel would have to wait. A file system that knows neither is taken to be fast.
# The answer is a hint: the kernel may drop pages at any time.

from libc.errno cimport EAGAIN, errno

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef SYS_cachestat
    #define SYS_cachestat 451
    #endif
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 8
    #endif

    static long cached_pages(int fd, uint64_t position, uint64_t size) {
        uint64_t range[2] = {position, size};
        uint64_t counts[5] = {0, 0, 0, 0, 0}; /* cached, dirty, under writeback, evicted, recently evicted */
        return syscall(SYS_cachestat, fd, range, counts, 0) ? -1 : (long)counts[0];
    }

    static long read_without_waiting(int fd, long long position) {
        char byte;
        struct iovec part = {&byte, 1};
        return (long)preadv2(fd, &part, 1, position, RWF_NOWAIT);
    }
    """
    long cached_pages(int fd, unsigned long long position, unsigned long long size) nogil
    long read_without_waiting(int fd, long long position) nogil

import os

cdef long PAGE = os.sysconf("SC_PAGE_SIZE")
cdef long STEP = 128 * 1024  # what the kernel reads ahead by default


def is_cached(int fd, long long position, long long size, bint by_range=True):
    """Return whether all of these bytes of a file are in the page cache. `by_range` false: without cachestat(2)."""
    cdef long long end = position + size
    cdef long pages
    if size <= 0:
        return True
    if by_range:
        pages = cached_pages(fd, position, size)
        if pages >= 0:
            return pages >= (end - 1) // PAGE - position // PAGE + 1
    while position < end:
        if read_without_waiting(fd, position) < 0 and errno == EAGAIN:
            return False
        position += STEP
    return not (read_without_waiting(fd, end - 1) < 0 and errno == EAGAIN)
