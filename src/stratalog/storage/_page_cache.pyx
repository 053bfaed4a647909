# Whether a range of a file is in the page cache, so that reading or sending it does not wait for a disk.
#
# A byte of every 128 KiB is read with RWF_NOWAIT, which fails if the kernel would have to wait: the page is missing, or
# still being read. (cachestat(2) counts pages that are still being read as cached.) The kernel reads ahead and drops
# pages in larger units, so few holes are missed. A file system without RWF_NOWAIT is taken to be fast. The answer is a
# hint: the kernel may drop pages at any time.

from libc.errno cimport EAGAIN, errno

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/uio.h>
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 8
    #endif

    static long read_without_waiting(int fd, long long position) {
        char byte;
        struct iovec part = {&byte, 1};
        return (long)preadv2(fd, &part, 1, position, RWF_NOWAIT);
    }
    """
    long read_without_waiting(int fd, long long position) nogil

cdef long STEP = 128 * 1024  # the distance that the kernel reads ahead by default


def is_cached(int fd, long long position, long long size):
    """Return whether these bytes of a file are in the page cache."""
    cdef long long end = position + size
    if size <= 0:
        return True
    while position < end:
        if read_without_waiting(fd, position) < 0 and errno == EAGAIN:
            return False
        position += STEP
    return not (read_without_waiting(fd, end - 1) < 0 and errno == EAGAIN)
