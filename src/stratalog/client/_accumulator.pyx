# The records that wait to be sent: for each partition the batch that records are written into, the closed batches
# before it, and a limit on the memory of all of them.
#
# `send` runs for every record: it finds the topic, chooses the partition and writes the record into the partition's
# open batch. It takes no lock. From reading a queue's open batch to the end of the write, it runs no Python code and
# creates no object that the garbage collector tracks. (A collection might run a finalizer, which might let another
# thread run.) So the GIL makes that part atomic. Everything that can run Python code (a new batch, a wait, waking the
# sender) happens outside of it, and `send` then reads the queue again.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from posix.unistd cimport write

from stratalog.client._batch cimport Batch, Delivery, monotonic, wall_clock_ms
from stratalog.client._direct cimport DirectPath
from stratalog.client._partitioner cimport partition_of_key
from stratalog.client._record_arguments cimport bytes_of, milliseconds_of, pack_headers, partition_number
from stratalog.client._queues cimport PartitionQueue, TopicQueues
from stratalog.records.format cimport HEADER_SIZE

import threading

from stratalog.client.errors import BufferExhaustedError, RecordTooLargeError

cdef enum:
    _SMALLEST_POOLED = 65536

cdef double _NEVER = 1e300
cdef double _LONGEST_WAIT = 3600.0  # seconds; a lock can't be waited for as long as max.block.ms may be

cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_alloc


@cython.final
cdef class Accumulator:
    """All batches that are not acknowledged. Senders fill it, and the I/O thread empties it.

    A write to `wake_fd` wakes the I/O thread. `find_topic(name, partition, seconds)` returns the TopicQueues of a topic
    that has the partition (-1: any), and may wait for `seconds`.
    """

    def __cinit__(
        self, *, Py_ssize_t batch_size, Py_ssize_t buffer_memory, Py_ssize_t max_request_size, double linger,
        double max_block, double delivery_timeout, int max_in_flight, bint is_idempotent, find_topic,
        value_serializer=None, key_serializer=None,
    ):
        self.batch_size = batch_size
        self.buffer_memory = buffer_memory
        self.max_request_size = max_request_size
        self.linger = linger
        self.max_block = max_block
        self.delivery_timeout = delivery_timeout
        self.max_in_flight = max_in_flight
        self.is_idempotent = is_idempotent
        self.topics = {}
        self.incomplete = set()
        self._active = []
        self._next_wake = _NEVER
        self._find_topic = find_topic
        self.wake_fd = -1
        self._pool = []
        # As in Java, memory of buffer_memory that was used once is kept: touching memory that is new to the process
        # costs more than filling it. Small blocks are left to the allocator.
        self._most_pooled = buffer_memory if batch_size >= _SMALLEST_POOLED else -1
        self._value_serializer, self._key_serializer = value_serializer, key_serializer
        self._room = threading.Condition()

    # Sending: any thread.

    cdef Delivery send(self, str topic, value, key, headers, partition, timestamp, on_delivery):
        cdef PyObject *known
        cdef TopicQueues topics
        cdef PartitionQueue queue
        cdef Batch batch
        cdef Delivery delivery
        cdef bytes content, key_content, packed_headers = None
        cdef long long when
        cdef double deadline = 0
        cdef int number = -1
        cdef int written
        cdef bint is_sticky, has_closed = False
        cdef Py_ssize_t size
        self._refuse_if_closed()
        if topic is None:
            raise TypeError("topic must be the name of a topic")
        known = PyDict_GetItem(self.topics, topic)
        topics = <TopicQueues> known if known != NULL else self._find_topic(topic, -1, self.max_block)
        if self._value_serializer is not None and value is not None:
            value = self._value_serializer(value)
        if self._key_serializer is not None and key is not None:
            key = self._key_serializer(key)
        content = <bytes> value if value is None or type(value) is bytes else bytes_of(value, "value")
        key_content = <bytes> key if key is None or type(key) is bytes else bytes_of(key, "key")
        if headers is not None:
            packed_headers = pack_headers(headers)
        when = wall_clock_ms() if timestamp is None else milliseconds_of(timestamp)
        if partition is not None:
            number = partition_number(partition)
            if number >= topics.count:
                topics = self._find_topic(topic, number, self.max_block)
        size = (
            48 + (0 if content is None else PyBytes_GET_SIZE(content))
            + (0 if key_content is None else PyBytes_GET_SIZE(key_content))
            + (0 if packed_headers is None else PyBytes_GET_SIZE(packed_headers))
        )
        if size + HEADER_SIZE > self.max_request_size or size + HEADER_SIZE > self.buffer_memory:
            raise _too_large(topic, size, self)
        delivery = Delivery.__new__(Delivery)
        is_sticky = partition is None and key_content is None
        if partition is None and not is_sticky:
            number = partition_of_key(
                <const unsigned char *> PyBytes_AS_STRING(key_content), PyBytes_GET_SIZE(key_content), topics.count
            )
        while True:
            # Atomic under the GIL until the record is written or does not fit. Once sends are refused, no record is
            # written any more, so that the end of a transaction comes after all of its records.
            if self._refusal is not None:
                raise self._refusal()
            queue = topics.queue_without_key() if is_sticky else <PartitionQueue> topics.partitions[number]
            batch = queue.open
            if batch is not None:
                written = self._append(batch, content, key_content, packed_headers, when)
                if written:
                    break
                if batch.record_count == 0:
                    self._wait_for_room(size, &deadline)
                    continue
                queue.close(True)
                has_closed = True
                if is_sticky:
                    topics.leave_sticky_queue()
                    continue
            self._open(queue, size, &deadline)
        delivery.batch = batch
        delivery.index = batch.record_count - 1
        delivery.timestamp_ms = when
        if is_sticky:
            topics.sticky_bytes += size
        if not self._is_woken and (
            has_closed
            or batch.size >= self.batch_size
            or (delivery.index == 0 and batch.created + self.linger < self._next_wake)
        ):
            if self.direct is None or has_closed or self.waiting or not self._post(queue, batch):
                self._wake_sender()
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    cdef bint _post(self, PartitionQueue queue, Batch batch) except -1:
        """Send the batch from this thread if that is simple. Return whether it was sent."""
        cdef Py_ssize_t charged = batch.charged
        cdef bint is_sent = self.direct.post(queue, batch)
        self.used -= charged - batch.charged
        return is_sent

    cdef int _append(self, Batch batch, bytes value, bytes key, bytes headers, long long timestamp) except -1:
        """Write a record into a batch. Return 1, or 0 if the record does not fit."""
        cdef Py_ssize_t needed, capacity
        needed = batch.size + batch.record_size(
            -1 if value is None else PyBytes_GET_SIZE(value), -1 if key is None else PyBytes_GET_SIZE(key),
            1 if headers is None else PyBytes_GET_SIZE(headers), timestamp,
        )
        if needed > self.batch_size and batch.record_count:
            return 0
        if needed > batch.capacity:
            capacity = max(min(2 * batch.capacity, self.batch_size), needed)
            if self.used + capacity - batch.capacity > self.buffer_memory:
                return 0
            self.used += capacity - batch.capacity
            batch.reserve(capacity)
        batch.write(value, key, headers, timestamp)
        return 1

    cdef int _open(self, PartitionQueue queue, Py_ssize_t record_size, double *deadline) except -1:
        """Open a new batch for a partition. Return 0 if time has passed, so the queue must be read again."""
        cdef Py_ssize_t capacity = max(min(queue.expected_size, self.batch_size), record_size + HEADER_SIZE)
        cdef bytearray memory = None
        cdef Batch batch
        if capacity > self.batch_size // 2:
            memory = self.spare()
            if memory is not None:
                capacity = max(capacity, self.batch_size)
        if self.used - self._not_encoded + capacity + len(self._pool) * self.batch_size > self.buffer_memory:
            self._pool.clear()
        if self.used + capacity > self.buffer_memory:
            capacity = record_size + HEADER_SIZE
            if self.used + capacity > self.buffer_memory:
                self._wait_for_room(capacity, deadline)
                return 0
        if memory is not None and capacity == self.batch_size:
            batch = Batch.__new__(Batch, queue, queue.batch_count, 0)
            batch.fill(memory)
        else:
            batch = Batch.__new__(Batch, queue, queue.batch_count, capacity)
        self._refuse_if_closed()
        # Atomic under the GIL from here on.
        if queue.open is not None or self.used + capacity > self.buffer_memory:
            return 0
        queue.batch_count += 1
        self.used += capacity
        queue.open = batch
        self.incomplete.add(batch)
        self._list(queue)
        return 1

    cdef void _list(self, PartitionQueue queue) noexcept:
        if not queue.is_active:
            queue.is_active = True
            self._active.append(queue)

    cdef int _wait_for_room(self, Py_ssize_t size, double *deadline) except -1:
        """Wait until `size` bytes are free. The deadline of a call begins with its first wait."""
        cdef double now = monotonic()
        if PyThread_get_thread_ident() == self.io_thread:
            raise BufferExhaustedError(
                f"buffer.memory is full ({self.used} of {self.buffer_memory} bytes), and a callback of the producer "
                "can't wait for the thread it runs in to free memory; send from another thread"
            )
        if deadline[0] == 0:
            deadline[0] = now + self.max_block
        self.waiting += 1
        try:
            self._wake_sender()  # while a thread waits for memory, all batches are ready to be sent
            with self._room:
                while self.used + size > self.buffer_memory:
                    self._refuse_if_closed()
                    if now >= deadline[0]:
                        raise BufferExhaustedError(
                            f"buffer.memory is full ({self.used} of {self.buffer_memory} bytes), and {size} bytes did "
                            f"not become free within max.block.ms = {self.max_block * 1000:.0f}: the brokers are "
                            "slower than the producer, or don't respond; send less, or raise one of the two settings"
                        )
                    self._room.wait(min(deadline[0] - now, _LONGEST_WAIT))
                    now = monotonic()
        finally:
            self.waiting -= 1
        return 0

    cdef int _refuse_if_closed(self) except -1:
        if self._refusal is not None:
            raise self._refusal()
        return 0

    cdef void _wake_sender(self) noexcept:
        """Wake the I/O thread. Keeps the GIL: the call is short, and getting the GIL back takes time."""
        cdef unsigned long long increment = 1
        if not self._is_woken and self.wake_fd >= 0:
            self._is_woken = True
            write(self.wake_fd, &increment, sizeof(increment))

    def add_rows(self, PartitionQueue queue not None, encode, Py_ssize_t size, int record_count,
                 long long base_timestamp, long long max_timestamp):
        """Add a batch of a table's rows after the partition's other batches, and return it. The rows are encoded when
        the batch is sent, but their encoded size counts now, so the call may wait for memory."""
        cdef Batch batch
        cdef double deadline = 0
        if size > self.buffer_memory:
            raise _too_large(queue.topic, size, self)
        while True:
            self._refuse_if_closed()
            if self.used + size > self.buffer_memory:
                self._wait_for_room(size, &deadline)
                continue
            batch = Batch.of_rows(queue, queue.batch_count, encode, size, record_count, base_timestamp, max_timestamp)
            if self._refusal is not None or self.used + size > self.buffer_memory:
                continue
            break
        # Atomic under the GIL from here on.
        if queue.open is not None:
            queue.close(False)
        batch.number = queue.batch_count
        queue.batch_count += 1
        self.used += size
        self._not_encoded += size
        queue.closed.append(batch)
        self.incomplete.add(batch)
        self._list(queue)
        self._wake_sender()
        return batch

    def spare(self):
        """Return memory of batch_size bytes that was used before, or None."""
        return self._pool.pop() if self._pool else None

    # For the I/O thread.

    def ready(self, double now):
        """Return the partitions that have a batch to send now, the time when there is more to do, and whether a leader
        is missing."""
        cdef list due_queues = []
        cdef list kept = []
        cdef PartitionQueue queue
        cdef double wake = _NEVER
        cdef double due
        cdef Batch head
        cdef bint lacks_leader = False
        cdef bint at_once = self.flushing > 0 or self.waiting > 0
        self._is_woken = False
        for queue in self._active:
            head = <Batch> queue.closed[0] if queue.closed else queue.open
            if head is None:
                queue.is_active = False
                continue
            kept.append(queue)
            if head.record_count == 0:
                continue  # a thread is about to write its first record, and will wake this one
            due = head.created + self.delivery_timeout
            if due < wake:
                wake = due
            if due <= now:
                due_queues.append(queue)
                continue
            if queue.leader < 0:
                lacks_leader = True
                continue
            if queue.in_flight and (
                queue.in_flight >= self.max_in_flight
                or queue.needs_new_epoch
                # A batch that is sent again is sent alone, so that later batches stay after it.
                or head.attempts
                # A broker that does not know a producer accepts any batch as its first, so send only the first.
                or (self.is_idempotent and queue.last_acknowledged < 0)
            ):
                continue
            due = queue.retry_at
            if not queue.closed and not at_once and head.created + self.linger > due:
                due = head.created + self.linger
            if due <= now:
                due_queues.append(queue)
            elif due < wake:
                wake = due
        self._active = kept
        self._next_wake = wake
        return due_queues, wake, lacks_leader

    def pack(self, Batch batch not None, int codec, level):
        """Encode the rows of a table's batch, and compress the batch. After that no record is written into it."""
        cdef Py_ssize_t size
        if batch.encode is not None:
            self._encode_rows(batch)
        size = batch.pack(codec, level)
        if size:
            self.give_back(size)

    cdef int _encode_rows(self, Batch batch) except -1:
        """Encode rows into the memory of the last acknowledged batch if possible. There are few such blocks, so the
        processor may still have them in its caches."""
        cdef Py_ssize_t capacity = self.batch_size if 2 * batch.size > self.batch_size else 0
        encode, batch.encode = batch.encode, None
        self._not_encoded -= batch.size
        batch.data = encode(self.spare() if capacity else None, capacity)
        batch.memory = <unsigned char *> PyByteArray_AS_STRING(batch.data)
        return 0

    def give_back(self, Py_ssize_t size):
        """Free bytes of a batch that is done or was compressed."""
        self.used -= size
        if self.waiting:
            with self._room:
                self._room.notify_all()

    def release(self, Batch batch not None):
        """Forget a batch that is done and will not be sent again."""
        cdef bytearray memory = batch.data
        self.incomplete.discard(batch)
        if batch.encode is not None:
            batch.encode = None
            self._not_encoded -= batch.size
        size, batch.charged = batch.charged, 0
        batch.data = None
        if memory is not None:
            self._keep(memory)
        if size:
            self.give_back(size)

    cdef int _keep(self, bytearray memory) except -1:
        """Keep memory for the next batch, if it has the right size and no connection is still sending it."""
        cdef Py_ssize_t allocated = (<PyByteArrayObject *> memory).ob_alloc
        if allocated <= self.batch_size or allocated > self.batch_size + 4096:
            return 0
        if len(self._pool) * self.batch_size + self.used - self._not_encoded > self._most_pooled:
            return 0
        try:
            PyByteArray_Resize(memory, self.batch_size)
        except BufferError:
            return 0
        self._pool.append(memory)
        return 0

    def replace(self, Batch whole not None, list parts):
        """Replace a batch by its parts."""
        cdef Batch part
        for part in parts:
            self.incomplete.add(part)
            self.used += part.charged
        self._list(whole.queue)
        self.release(whole)

    def list_again(self, PartitionQueue queue not None):
        """Record that the partition has a batch to send again."""
        self._list(queue)

    @property
    def is_idle(self):
        """True if there is nothing to send."""
        cdef PartitionQueue queue
        for queue in self._active:
            if queue.open is not None or queue.closed:
                return False
        return True

    def listed(self):
        """Return the partitions that have something to send."""
        return list(self._active)

    def begin_flush(self):
        """Make all batches ready to be sent until `end_flush`, and return them."""
        self.flushing += 1
        self._wake_sender()
        return [batch for batch in list(self.incomplete) if (<Batch> batch).record_count]

    def end_flush(self):
        self.flushing -= 1

    def refuse(self, refusal):
        """Make every send raise the exception that `refusal()` returns. None allows sends again."""
        self._refusal = refusal
        with self._room:
            self._room.notify_all()

    def refuse_in_child(self, refusal):
        """Do the same as `refuse` after a fork: a thread that the child does not have may hold the condition."""
        self._refusal = refusal
        self._room = threading.Condition()

    def check_usable(self):
        self._refuse_if_closed()


cdef _too_large(topic, Py_ssize_t size, Accumulator accumulator):
    name, limit = "max.request.size", accumulator.max_request_size
    if accumulator.buffer_memory < limit:
        name, limit = "buffer.memory", accumulator.buffer_memory
    return RecordTooLargeError.at_client("a record", size, name, limit, topic)


cdef class SendPath:
    """The method of Producer that runs for every record."""

    def send(self, str topic, value=None, key=None, headers=None, partition=None, timestamp=None, on_delivery=None):
        """Send a record and return its Delivery, a future of its position. Blocks only for metadata and memory, for at
        most max_block_ms.

        `value` and `key` are bytes or None, or what the serializers accept. `headers` are pairs of str and bytes, or a
        dict. Without a partition, the key decides, as in Java; without a key, a batch of records goes to one partition,
        then another gets the next. `timestamp` is in milliseconds since 1970, by default the current time. When the
        record is done, `on_delivery(delivery)` is called in the producer's own thread, where nothing may block.
        """
        if self._accumulator is None:
            raise TypeError("Producer.__init__ was not called")
        return self._accumulator.send(topic, value, key, headers, partition, timestamp, on_delivery)

    def _use(self, Accumulator accumulator not None):
        self._accumulator = accumulator
