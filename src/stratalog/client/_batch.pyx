# A batch that records are written into as they are sent, and the futures of those records, which share its outcome.
#
# A record costs its bytes and one Delivery of 48 bytes, which refers to the batch and to an index in it. When the batch
# is acknowledged, nothing is created or called per record, except for records with a waiting thread or a callback.
#
# Threads: senders write, the I/O thread seals and completes. There is no lock. The methods without `except`, and the
# parts marked as atomic, run no Python code and create no object that the garbage collector tracks, so the GIL makes
# them atomic.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from stratalog.client._record_arguments cimport pack_headers
from stratalog.records._crc32c cimport crc32c_of
from stratalog.records._varint cimport store16, store32, store64, varint_size, write_varint
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION, BASE_OFFSET_POSITION, BASE_SEQUENCE_POSITION, BASE_TIMESTAMP_POSITION, BATCH_LENGTH_POSITION,
    CRC_POSITION, CURRENT_MAGIC, HEADER_SIZE, LAST_OFFSET_DELTA_POSITION, LEADER_EPOCH_POSITION, LOG_OVERHEAD,
    MAGIC_POSITION, MAX_TIMESTAMP_POSITION, PRODUCER_EPOCH_POSITION, PRODUCER_ID_POSITION, RECORD_COUNT_POSITION,
)

import asyncio
import logging
import os
from _thread import TIMEOUT_MAX, allocate_lock
from typing import NamedTuple

from stratalog.client.errors import ForkedClientError
from stratalog.records import compression

cdef enum:
    _KEEPS_THE_GIL = 32000  # bytes; crc32c_of releases the GIL for more

_logger = logging.getLogger("stratalog.client.producer")

# A forked child has no thread that could complete the batches of its parent. It recognizes them by their generation.
cdef long long _generation = 0


def _forked():
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


cdef double monotonic() noexcept nogil:
    """Return the monotonic time as time.monotonic and an event loop's clock do."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double> now.tv_sec + <double> now.tv_nsec * 1e-9


cdef long long wall_clock_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <long long> now.tv_sec * 1000 + now.tv_nsec // 1000000


class RecordMetadata(NamedTuple):
    """The position of a record. The offset is -1 if the broker does not return it: with acks=0, and for a duplicate."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@cython.final
cdef class Batch:
    """Records of one partition: open, then closed, sealed, in flight, and in the end done, exactly once."""

    def __cinit__(self, queue, long long number, Py_ssize_t capacity, int start=0, created=None):
        self.queue = queue
        self.number = number
        self.start = start
        self.created = monotonic() if created is None else created
        self.data = PyByteArray_FromStringAndSize(NULL, capacity)
        self.memory = <unsigned char *> PyByteArray_AS_STRING(self.data)
        self.capacity = self.charged = capacity
        self.size = HEADER_SIZE
        self.max_timestamp = self.base_timestamp = -1
        self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.base_offset = self.append_time = -1
        self._generation = _generation

    @staticmethod
    def of_rows(queue, long long number, encode, Py_ssize_t size, int record_count, long long base_timestamp,
                long long max_timestamp):
        """Return a batch of a table's rows, which are encoded when it is sent: `encode(memory, capacity)` returns the
        `size` bytes of them, with space for the header in front. The batch keeps the table alive until then."""
        cdef Batch batch = Batch.__new__(Batch, queue, number, 0)
        batch.encode = encode
        batch.size = batch.capacity = batch.charged = size
        batch.record_count = record_count
        batch.base_timestamp = base_timestamp
        batch.max_timestamp = max_timestamp
        batch._is_of_rows = True
        return batch

    # For senders: atomic under the GIL.

    cdef void fill(self, bytearray data) noexcept:
        """Use `data` as memory from now on. The batch is still empty."""
        self.data = data
        self.memory = <unsigned char *> PyByteArray_AS_STRING(data)
        self.capacity = self.charged = len(data)

    cdef Py_ssize_t record_size(
        self, Py_ssize_t value, Py_ssize_t key, Py_ssize_t headers, long long timestamp
    ) noexcept:
        """Return the size of the next record. A length of -1 is null. `headers` includes the size of their number."""
        cdef Py_ssize_t body = 1 + varint_size(self.record_count) + headers
        if self.record_count:
            body += varint_size(timestamp - self.base_timestamp)
        else:
            body += 1
        body += varint_size(value) + (value if value > 0 else 0)
        body += varint_size(key) + (key if key > 0 else 0)
        return body + varint_size(body)

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        PyByteArray_Resize(self.data, capacity)
        self.memory = <unsigned char *> PyByteArray_AS_STRING(self.data)
        self.charged += capacity - self.capacity
        self.capacity = capacity
        return 0

    cdef void write(self, bytes value, bytes key, bytes headers, long long timestamp) noexcept:
        """Write a record, which must fit. `headers` may be None."""
        cdef unsigned char *p = self.memory + self.size
        cdef Py_ssize_t value_length = -1 if value is None else PyBytes_GET_SIZE(value)
        cdef Py_ssize_t key_length = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t headers_length = 1 if headers is None else PyBytes_GET_SIZE(headers)
        cdef long long delta
        cdef Py_ssize_t body
        if self.record_count == 0:
            self.base_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        body = (
            1 + varint_size(delta) + varint_size(self.record_count) + varint_size(key_length)
            + varint_size(value_length) + headers_length
        )
        body += (key_length if key_length > 0 else 0) + (value_length if value_length > 0 else 0)
        p = write_varint(p, body)
        p[0] = 0
        p = write_varint(p + 1, delta)
        p = write_varint(p, self.record_count)
        p = write_varint(p, key_length)
        if key_length > 0:
            memcpy(p, PyBytes_AS_STRING(key), key_length)
            p += key_length
        p = write_varint(p, value_length)
        if value_length > 0:
            memcpy(p, PyBytes_AS_STRING(value), value_length)
            p += value_length
        if headers is None:
            p[0] = 0
            p += 1
        else:
            memcpy(p, PyBytes_AS_STRING(headers), headers_length)
            p += headers_length
        self.size = p - self.memory
        self.record_count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    # For the I/O thread.

    def add(self, bytes value, bytes key, headers, long long timestamp):
        """Write a record, and get more memory if it does not fit."""
        cdef bytes packed = pack_headers(headers)
        cdef Py_ssize_t size = self.size + self.record_size(
            -1 if value is None else len(value), -1 if key is None else len(key), 1 if packed is None else len(packed),
            timestamp,
        )
        if size > self.capacity:
            self.reserve(max(size, 2 * self.capacity))
        self.write(value, key, packed, timestamp)

    def pack(self, int codec, level):
        """Compress the batch, and return the bytes of memory that this freed. No record is written after that."""
        cdef Py_ssize_t before = self.charged
        if self.is_packed:
            return 0
        if codec:
            with memoryview(self.data) as whole:
                packed = compression.compress(codec, whole[HEADER_SIZE:self.size], level)
            data = bytearray(HEADER_SIZE)
            data += packed
            self.data = data
            self.size = len(data)
        else:
            PyByteArray_Resize(self.data, self.size)
        self.memory = <unsigned char *> PyByteArray_AS_STRING(self.data)
        if self.size < self.capacity // 2 or codec:
            self.charged = min(self.size, before)
            self.capacity = self.size
        self.is_packed = True
        return before - self.charged

    def number_records(self, long long producer_id, int producer_epoch, int base_sequence):
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def seal(self, int codec):
        """Write the header. May be called again with another sequence number."""
        cdef unsigned char *p = self.memory
        cdef unsigned int crc = 0
        cdef Py_ssize_t position, length
        if p == NULL:
            raise ValueError("the batch is done already; wait for the producer's thread after closing the producer")
        store64(p + BASE_OFFSET_POSITION, 0)
        store32(p + BATCH_LENGTH_POSITION, <unsigned int> (self.size - LOG_OVERHEAD))
        store32(p + LEADER_EPOCH_POSITION, 0xFFFFFFFF)
        p[MAGIC_POSITION] = CURRENT_MAGIC
        store16(p + ATTRIBUTES_POSITION, <unsigned short> codec)
        store32(p + LAST_OFFSET_DELTA_POSITION, <unsigned int> (self.record_count - 1))
        store64(p + BASE_TIMESTAMP_POSITION, <unsigned long long> self.base_timestamp)
        store64(p + MAX_TIMESTAMP_POSITION, <unsigned long long> self.max_timestamp)
        store64(p + PRODUCER_ID_POSITION, <unsigned long long> self.producer_id)
        store16(p + PRODUCER_EPOCH_POSITION, <unsigned short> self.producer_epoch)
        store32(p + BASE_SEQUENCE_POSITION, <unsigned int> self.base_sequence)
        store32(p + RECORD_COUNT_POSITION, <unsigned int> self.record_count)
        if self._is_of_rows:
            # A thread that sends columns is busy without the GIL, and would wait for it here after each batch. The
            # memoryview keeps the memory in place if another thread drops the batch meanwhile.
            with memoryview(self.data):
                store32(p + CRC_POSITION, crc32c_of(p + ATTRIBUTES_POSITION, self.size - ATTRIBUTES_POSITION, 0))
            return
        # In pieces that keep the GIL. A thread that releases it while another is busy gets it back after 5 ms, and this
        # takes less than 0.1 ms.
        position = ATTRIBUTES_POSITION
        while position < self.size:
            length = min(self.size - position, _KEEPS_THE_GIL)
            crc = crc32c_of(p + position, length, crc)
            position += length
        store32(p + CRC_POSITION, crc)

    def acknowledge(self, long long base_offset, long long append_time):
        if not self.is_done:
            self.base_offset = base_offset
            self.append_time = append_time
            self._complete()

    def fail(self, error):
        if not self.is_done:
            self.error = error
            self._complete()

    def split_into(self, list parts):
        """Split the batch: its records are now those of the parts, in order. Waiting threads wait for the parts."""
        self.parts = parts
        callbacks, self._callbacks = self._callbacks, None
        self._wake_waiters()
        for delivery, callback in callbacks or ():
            (<Delivery> delivery).settled(NULL).add_callback(delivery, callback)

    def _complete(self):
        self.is_done = True
        self.data = None  # the connection may still refer to it
        self.memory = NULL
        callbacks, self._callbacks = self._callbacks, None
        self._wake_waiters()
        if callbacks is not None:
            for delivery, callback in callbacks:
                _call(callback, delivery)

    def _wake_waiters(self):
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            for lock in waiters:
                lock.release()

    # For threads that have a Delivery.

    cdef int add_callback(self, delivery, callback) except -1:
        cdef tuple entry = (delivery, callback)
        cdef list fresh = []
        if self.parts is not None:
            return (<Delivery> delivery).settled(NULL).add_callback(delivery, callback)
        if not self.is_done:
            if self._callbacks is None:
                self._callbacks = fresh
            self._callbacks.append(entry)
            return 0
        _call(callback, delivery)
        return 0

    cpdef bint wait(self, double deadline) except -1:
        """Wait until the batch is done or split, or until the monotonic time `deadline`; below 0, without limit. Return
        whether it is done or split."""
        cdef double left
        cdef list fresh
        if self.is_done or self.parts is not None:
            return True
        if self._generation != _generation:
            raise ForkedClientError(
                "this record was sent before the process was forked; only the parent process can wait for it"
            )
        lock = allocate_lock()
        lock.acquire()
        fresh = []
        if self.is_done or self.parts is not None:
            return True
        if self._waiters is None:
            self._waiters = fresh
        self._waiters.append(lock)
        if deadline < 0:
            lock.acquire()
        else:
            left = deadline - monotonic()
            if left > 0:
                lock.acquire(True, min(left, TIMEOUT_MAX))
        return self.is_done or self.parts is not None


def _call(callback, delivery):
    try:
        callback(delivery)
    except BaseException:
        _logger.exception("a callback of %r raised", delivery)


@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Delivery:
    """The outcome of one record: a future like those of concurrent.futures, and awaitable.

    `result()` returns RecordMetadata or raises the record's error. Every delivery completes: with a response, with an
    error, after delivery_timeout_ms, or when the producer is closed.
    """

    def __init__(self):
        raise TypeError("a Delivery can't be created directly; Producer.send returns one")

    cdef Batch settled(self, int *index):
        """Return the batch that has the record now, since batches may be split, and the record's index in it."""
        cdef Batch batch = self.batch
        cdef Batch part
        cdef int position = self.index
        while batch.parts is not None:
            for part in batch.parts:
                if position < part.record_count:
                    batch = part
                    break
                position -= part.record_count
        if index != NULL:
            index[0] = position
        return batch

    def done(self):
        """Return whether the record is acknowledged or has failed."""
        return self.settled(NULL).is_done

    def result(self, timeout=None):
        """Wait for the record and return its RecordMetadata. Raises the record's error, or TimeoutError after `timeout`
        seconds."""
        cdef int index = 0
        cdef Batch batch
        self._wait(timeout)
        batch = self.settled(&index)
        if batch.error is not None:
            raise batch.error.with_traceback(None)
        return RecordMetadata(
            batch.queue.topic,
            batch.queue.partition,
            -1 if batch.base_offset < 0 else batch.base_offset + index,
            self.timestamp_ms if batch.append_time < 0 else batch.append_time,
        )

    def exception(self, timeout=None):
        """Wait like `result`, and return the error of the record, or None if it is acknowledged."""
        self._wait(timeout)
        return self.settled(NULL).error

    def add_done_callback(self, callback):
        """Call `callback(delivery)` when the record is done: in the producer's own thread, or at once if it is done
        already.

        The callback must not block that thread: while it waits, nothing is sent or acknowledged.
        """
        self.settled(NULL).add_callback(self, callback)

    def _wait(self, timeout):
        cdef double deadline = -1 if timeout is None else monotonic() + max(0.0, timeout)
        cdef Batch batch = self.settled(NULL)
        while not batch.is_done:
            if not batch.wait(deadline):
                raise TimeoutError(
                    f"a record to {batch.queue.topic}-{batch.queue.partition} is not acknowledged after {timeout} s; "
                    "it is still in flight: wait longer, or lower delivery_timeout_ms so that it fails sooner"
                )
            batch = self.settled(NULL)

    def __await__(self):
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        self.add_done_callback(lambda _: loop.call_soon_threadsafe(_wake, waiting))
        yield from waiting
        return self.result()

    def __repr__(self):
        cdef int index = 0
        cdef Batch batch = self.settled(&index)
        partition = f"{batch.queue.topic}-{batch.queue.partition}"
        if not batch.is_done:
            return f"<Delivery to {partition}, in flight>"
        if batch.error is not None:
            return f"<Delivery to {partition}, failed: {batch.error}>"
        return f"<Delivery to {partition}, offset {batch.base_offset + index if batch.base_offset >= 0 else 'unknown'}>"


def _wake(waiting):
    if not waiting.done():
        waiting.set_result(None)

