# Where records wait to be sent: a batch in the making for each partition, closed ones before it, and a bound on all
# of them.
#
# `send` is the path of every record: it finds the topic, chooses the partition and writes the record into the
# partition's batch. There is no lock on it. Between the look at a queue's open batch and the end of the writing no
# Python code runs and nothing is made that the garbage collector counts (it might run a finalizer, which might let
# another thread in), so under the GIL that part is whole. What can run Python code (a new batch, a wait, the sender's
# wake-up) is done outside of it, and what was seen before is looked at again.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from posix.unistd cimport write

from stratalog.client._batch cimport Batch, Delivery, monotonic, pack_headers, wall_clock_ms
from stratalog.client._direct cimport DirectPath
from stratalog.client._partitioner cimport partition_of_key
from stratalog.client._queues cimport PartitionQueue, TopicQueues
from stratalog.records.format cimport HEADER_SIZE

import os
import threading

from stratalog.client.errors import BufferExhaustedError, RecordTooLargeError

cdef enum:
    _STICKY_BYTES = 16384        # a keyless partition is left at the end of a batch once it got this much
    _SMALLEST_POOLED = 65536

cdef double _NEVER = 1e300
cdef double _LONGEST_WAIT = 3600.0  # seconds; max.block.ms may be more than a lock can be waited for

cdef extern from "Python.h":
    ctypedef struct PyByteArrayObject:
        Py_ssize_t ob_alloc


@cython.final
cdef class Accumulator:
    """All that is not acknowledged. Senders fill it, the I/O thread empties it.

    What is written to `wake_fd` has the I/O thread look at it; `find_topic(name, partition, seconds)` gives TopicQueues
    that have the partition (-1: any), and may wait so long.
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
        # As in Java, what was once taken of buffer_memory is kept: memory that is new to a process costs more to touch
        # than to fill. Small memory is the allocator's business.
        self._most_pooled = buffer_memory if batch_size >= _SMALLEST_POOLED else -1
        self._value_serializer, self._key_serializer = value_serializer, key_serializer
        self._room = threading.Condition()
        self._random = int.from_bytes(os.urandom(8), "little") | 1

    # Sending: any thread.

    cdef Delivery send(self, str topic, value, key, headers, partition, timestamp, on_delivery):
        cdef PyObject *found
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
            raise TypeError("topic is None; a topic's name is wanted")
        found = PyDict_GetItem(self.topics, topic)
        topics = <TopicQueues> found if found != NULL else self._find_topic(topic, -1, self.max_block)
        if self._value_serializer is not None and value is not None:
            value = self._value_serializer(value)
        if self._key_serializer is not None and key is not None:
            key = self._key_serializer(key)
        content = <bytes> value if value is None or type(value) is bytes else _bytes_of(value, "value")
        key_content = <bytes> key if key is None or type(key) is bytes else _bytes_of(key, "key")
        if headers is not None:
            packed_headers = pack_headers(headers)
        when = wall_clock_ms() if timestamp is None else _milliseconds(timestamp)
        if partition is not None:
            number = _partition_number(partition)
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
            # Whole under the GIL, until the record is written or there is no room for it: once sends are refused, nothing
            # is written any more, so that a transaction's end has all records before it.
            if self._refusal is not None:
                raise self._refusal()
            queue = self._stick(topics) if is_sticky else <PartitionQueue> topics.partitions[number]
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
                    topics.sticky_bytes = self.batch_size + _STICKY_BYTES
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
        """Send the batch from here, if that is simple; whether it was."""
        cdef Py_ssize_t charged = batch.charged
        cdef bint is_sent = self.direct.post(queue, batch)
        self.used -= charged - batch.charged
        return is_sent

    cdef int _append(
        self, Batch batch, bytes value, bytes key, bytes headers, long long timestamp
    ) except -1:
        """1: the record is in the batch. 0: it does not fit."""
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
        """Give the partition a new batch. 0: look again, time has passed."""
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
        # Whole under the GIL from here on.
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

    cdef PartitionQueue _stick(self, TopicQueues topic):
        """Where keyless records go: one partition until it got a batch of them, then another. Of two that are drawn it
        is the one with less to send, so that a slow broker gets less; one without a leader only if there is no other."""
        cdef PartitionQueue now = topic.sticky
        cdef PartitionQueue first, second
        if now is not None and (now.open is not None or topic.sticky_bytes < _STICKY_BYTES) and now.leader >= 0:
            return now
        if topic.count == 1:
            first = <PartitionQueue> topic.partitions[0]
        else:
            first, second = self._draw(topic, now), self._draw(topic, now)
            if second.leader >= 0 and (first.leader < 0 or _backlog(second) < _backlog(first)):
                first = second
        if first is not now:
            topic.sticky = first
        topic.sticky_bytes = 0
        return first

    cdef PartitionQueue _draw(self, TopicQueues topic, PartitionQueue other):
        """At random, but not `other`; with a leader, if one is found near."""
        cdef PartitionQueue drawn
        cdef int number, tried
        self._random ^= self._random << 13
        self._random ^= self._random >> 7
        self._random ^= self._random << 17
        number = <int> (self._random % <unsigned long long> topic.count)
        for tried in range(topic.count):
            drawn = <PartitionQueue> topic.partitions[(number + tried) % topic.count]
            if drawn is not other and drawn.leader >= 0:
                return drawn
        return <PartitionQueue> topic.partitions[number]

    cdef int _wait_for_room(self, Py_ssize_t size, double *deadline) except -1:
        """Until `size` bytes are free. The deadline counts from the first wait of a call."""
        cdef double now = monotonic()
        if PyThread_get_thread_ident() == self.io_thread:
            raise BufferExhaustedError(
                f"buffer.memory is full ({self.used} of {self.buffer_memory} bytes), and a callback of the producer "
                "can't wait for room, which this thread makes; send from another thread"
            )
        if deadline[0] == 0:
            deadline[0] = now + self.max_block
        self.waiting += 1
        try:
            self._wake_sender()  # while someone waits for memory, no batch is held back
            with self._room:
                while self.used + size > self.buffer_memory:
                    self._refuse_if_closed()
                    if now >= deadline[0]:
                        raise BufferExhaustedError(
                            f"buffer.memory is full ({self.used} of {self.buffer_memory} bytes) and no room for {size} "
                            f"bytes was made within max.block.ms = {self.max_block * 1000:.0f}: records come in faster "
                            "than the brokers take them, or the brokers don't answer; send less, or raise one of the two"
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
        """With the GIL kept: the system call is short, and who gives the GIL away here has to wait for it."""
        cdef unsigned long long one = 1
        if not self._is_woken and self.wake_fd >= 0:
            self._is_woken = True
            write(self.wake_fd, &one, sizeof(one))

    def add_rows(self, PartitionQueue queue not None, encode, Py_ssize_t size, int record_count,
                 long long base_timestamp, long long max_timestamp):
        """A batch of a table's rows, behind what the partition was sent before. May wait for room, as if it were encoded:
        that is done when it is sent."""
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
        # Whole under the GIL from here on.
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
        """Memory of batch_size bytes that was used before, or None."""
        return self._pool.pop() if self._pool else None

    def stick(self, TopicQueues topic not None):
        """Where keyless rows go now."""
        return self._stick(topic)

    def stuck(self, TopicQueues topic not None, Py_ssize_t size):
        """So many bytes of keyless rows went there."""
        topic.sticky_bytes += size

    # The I/O thread's.

    def ready(self, double now):
        """(partitions that have a batch to send now, when there is more to do, whether a leader is missing)."""
        cdef list found = []
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
                continue  # its first record is about to be written, and its writer will wake us
            due = head.created + self.delivery_timeout
            if due < wake:
                wake = due
            if due <= now:
                found.append(queue)
                continue
            if queue.leader < 0:
                lacks_leader = True
                continue
            if queue.in_flight and (
                queue.in_flight >= self.max_in_flight
                or queue.needs_new_epoch
                # A batch that is sent again goes alone, so that those behind it come behind it.
                or head.attempts
                # A broker that knows nothing of a producer takes any first batch: it must be the first.
                or (self.is_idempotent and queue.last_acknowledged < 0)
            ):
                continue
            due = queue.retry_at
            if not queue.closed and not at_once and head.created + self.linger > due:
                due = head.created + self.linger
            if due <= now:
                found.append(queue)
            elif due < wake:
                wake = due
        self._active = kept
        self._next_wake = wake
        return found, wake, lacks_leader

    def pack(self, Batch batch not None, int codec, level):
        """Encode it where that was left until now, and compress it: from here on nothing is written into it."""
        cdef Py_ssize_t size
        if batch.encode is not None:
            self._encode_rows(batch)
        size = batch.pack(codec, level)
        if size:
            self.give_back(size)

    cdef int _encode_rows(self, Batch batch) except -1:
        """Where the last one lay that was acknowledged, if it can be: there are few such places, and the processor may
        still have them in its caches."""
        cdef Py_ssize_t capacity = self.batch_size if 2 * batch.size > self.batch_size else 0
        encode, batch.encode = batch.encode, None
        self._not_encoded -= batch.size
        batch.data = encode(self.spare() if capacity else None, capacity)
        batch.memory = <unsigned char *> PyByteArray_AS_STRING(batch.data)
        return 0

    def give_back(self, Py_ssize_t size):
        """Memory of a batch that is done, or was compressed."""
        self.used -= size
        if self.waiting:
            with self._room:
                self._room.notify_all()

    def release(self, Batch batch not None):
        """A batch that is done and that nobody sends any more."""
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
        """For the next batch, if it has the size of one and no connection still sends it."""
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
        """A batch by its parts."""
        cdef Batch part
        for part in parts:
            self.incomplete.add(part)
            self.used += part.charged
        self._list(whole.queue)
        self.release(whole)

    def list_again(self, PartitionQueue queue not None):
        """It has a batch to send again."""
        self._list(queue)

    @property
    def is_idle(self):
        """Whether there is nothing to send."""
        cdef PartitionQueue queue
        for queue in self._active:
            if queue.open is not None or queue.closed:
                return False
        return True

    def listed(self):
        """Partitions with something to send."""
        return list(self._active)

    def begin_flush(self):
        """Until end_flush all that is there is ready to be sent. Returns it."""
        self.flushing += 1
        self._wake_sender()
        return [batch for batch in list(self.incomplete) if (<Batch> batch).record_count]

    def end_flush(self):
        self.flushing -= 1

    def refuse(self, refusal):
        """From now on every send raises what `refusal()` makes; None: they are let in again."""
        self._refusal = refusal
        with self._room:
            self._room.notify_all()

    def refuse_in_child(self, refusal):
        """As `refuse`, after a fork: the condition may be held by a thread that is not there."""
        self._refusal = refusal
        self._room = threading.Condition()

    def check_usable(self):
        self._refuse_if_closed()


cdef Py_ssize_t _backlog(PartitionQueue queue) noexcept:
    return len(queue.closed) + queue.in_flight


cdef bytes _bytes_of(content, str field):
    if isinstance(content, str) or isinstance(content, int):
        raise TypeError(
            f"{field} is {type(content).__name__}; bytes or None is wanted: encode it, or give the producer a "
            f"{field}_serializer"
        )
    try:
        return bytes(memoryview(content))
    except TypeError:
        raise TypeError(
            f"{field} is {type(content).__name__}; bytes or None is wanted: encode it, or give the producer a "
            f"{field}_serializer"
        ) from None


cdef long long _milliseconds(timestamp) except? -1:
    if not isinstance(timestamp, int):
        raise TypeError(
            f"timestamp is {timestamp!r}; whole milliseconds since 1970 are wanted, as int(when.timestamp() * 1000)"
        )
    if timestamp < 0:
        raise ValueError(f"timestamp is {timestamp}; it must not be negative")
    return timestamp


cdef int _partition_number(partition) except -1:
    if not isinstance(partition, int):
        raise TypeError(f"partition is {partition!r}; a number or None is wanted")
    if partition < 0 or partition > 0x7FFFFFFF:
        raise ValueError(f"partition is {partition}; it must not be negative, and fit 32 bits")
    return partition


cdef _too_large(topic, Py_ssize_t size, Accumulator accumulator):
    name, bound = "max.request.size", accumulator.max_request_size
    if accumulator.buffer_memory < bound:
        name, bound = "buffer.memory", accumulator.buffer_memory
    return RecordTooLargeError.at_client("a record", size, name, bound, topic)


cdef class SendPath:
    """The part of a Producer that is called for every record."""

    def send(self, str topic, value=None, key=None, headers=None, partition=None, timestamp=None, on_delivery=None):
        """Send a record; returns its Delivery, a future of where it is. Waits only for metadata and room, max_block_ms at
        most.

        `value` and `key` are bytes or None, or what the serializers take. `headers` are pairs of str and bytes, or a
        dict. Without a partition the key decides, as in Java; without a key it is one partition for a batch, then another.
        `timestamp` is in milliseconds since 1970; now, if it is not given. `on_delivery(delivery)` is called when it is
        done, in the producer's own thread, where nothing may block.
        """
        if self._accumulator is None:
            raise TypeError("Producer.__init__ was not called")
        return self._accumulator.send(topic, value, key, headers, partition, timestamp, on_delivery)

    def _use(self, Accumulator accumulator not None):
        self._accumulator = accumulator
