# The unacknowledged batches of each partition, and the partitions of each topic. Senders append batches and the I/O
# thread takes them. Both hold the GIL and use no lock, as _accumulator.pyx explains.

cimport cython

from stratalog.client._batch cimport Batch

import os

cdef enum:
    _FIRST_CAPACITY = 4096
    _SMALLEST_CAPACITY = 512
    _HIGHEST_SEQUENCE = 0x7FFFFFFF


@cython.final
cdef class PartitionQueue:
    """The batches of a partition, and its position in the sequence numbers of an idempotent producer."""

    def __cinit__(self, str topic, int partition, int leader=-1):
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.closed = []
        self.producer_id = self.producer_epoch = self.last_acknowledged = -1
        self.expected_size = _FIRST_CAPACITY

    cdef void close(self, bint is_full) noexcept:
        """Close the open batch, so that it is sent as it is."""
        cdef Batch batch = self.open
        if is_full:
            self.expected_size = batch.capacity
        else:
            self.expected_size = max(_SMALLEST_CAPACITY, batch.size + batch.size // 4)
        self.closed.append(batch)
        self.open = None

    @property
    def is_empty(self):
        return self.open is None and not self.closed

    @property
    def first(self):
        """The next batch to send, to which records may still be added, or None."""
        return self.closed[0] if self.closed else self.open

    def head(self):
        """Return the next batch to send. No record is written into it after that."""
        if not self.closed and self.open is not None:
            self.close(False)
        if not self.closed:
            raise IndexError("there is no batch")
        return self.closed[0]

    def take(self, long long producer_id, int producer_epoch):
        """Remove and return the head, which is now in flight. With a producer id, number its records."""
        cdef Batch batch = self.closed.pop(0)
        self.in_flight += 1
        batch.attempts += 1
        if producer_id >= 0 and batch.base_sequence < 0:
            if self.producer_id < 0:
                self.producer_id, self.producer_epoch = producer_id, producer_epoch
            batch.number_records(self.producer_id, self.producer_epoch, self.next_sequence)
            self.next_sequence = _after(self.next_sequence, batch.record_count)
        return batch

    def is_next(self, Batch batch not None):
        """Return whether this is the batch that the broker expects next."""
        return batch.base_sequence == _after(self.last_acknowledged, 1)

    def acknowledged(self, Batch batch not None):
        self.in_flight -= 1
        if batch.producer_epoch == self.producer_epoch and batch.base_sequence >= 0:
            self.last_acknowledged = _after(batch.base_sequence, batch.record_count - 1)

    def failed(self):
        """Count a batch as no longer in flight. It will not be sent again."""
        self.in_flight -= 1

    def put_back(self, list batches):
        """Queue batches that were in flight, or the parts of one, before all batches that come after them."""
        cdef Py_ssize_t index = 0
        cdef Batch first = batches[0]
        self.in_flight -= 1
        for other in self.closed:
            if ((<Batch> other).number, (<Batch> other).start) > (first.number, first.start):
                break
            index += 1
        self.closed[index:index] = batches

    def drop_head(self):
        """Remove and return the head, which will not be sent."""
        self.head()
        return self.closed.pop(0)

    def begin_epoch(self, long long producer_id, int producer_epoch):
        """Begin with sequence number 0 while nothing is in flight. Waiting batches get new numbers."""
        cdef Batch batch
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.needs_new_epoch = False
        for batch in self.closed:
            batch.base_sequence = -1


cdef inline int _after(int sequence, int count) noexcept:
    """Return the sequence number `count` after another. After the highest number comes 0."""
    return <int> ((<long long> sequence + count) & _HIGHEST_SEQUENCE)


@cython.final
cdef class TopicQueues:
    """The partitions of a topic, and the choice of a partition for records without a key."""

    def __cinit__(self, str topic):
        self.topic = topic
        self.partitions = []
        self._random = int.from_bytes(os.urandom(8), "little") | 1

    def update(self, list leaders):
        """Take the node id of each partition's leader, -1 if it has none. Removed partitions stay, with their records."""
        cdef Py_ssize_t number
        for number, leader in enumerate(leaders):
            if number < len(self.partitions):
                (<PartitionQueue> self.partitions[number]).leader = leader
            else:
                self.partitions.append(PartitionQueue(self.topic, number, leader))
        for number in range(len(leaders), len(self.partitions)):
            (<PartitionQueue> self.partitions[number]).leader = -1
        if self.sticky is not None and self.sticky.partition >= len(leaders):
            self.sticky = None
        self.count = len(leaders)

    def sticky_queue(self):
        """Return the partition for rows without a key."""
        return self.queue_without_key()

    def add_sticky_bytes(self, Py_ssize_t size):
        """Count bytes of keyless rows that the sticky partition got."""
        self.sticky_bytes += size

    cdef PartitionQueue _choose(self):
        """Choose a partition for records without a key.

        One partition gets a batch of them, then another. Of two random partitions, the one with less to send is chosen,
        so that a slow broker gets less. A partition without a leader is chosen only if no other is available.
        """
        cdef PartitionQueue first, second
        if self.count == 1:
            first = <PartitionQueue> self.partitions[0]
        else:
            first, second = self._draw(self.sticky), self._draw(self.sticky)
            if second.leader >= 0 and (first.leader < 0 or _backlog(second) < _backlog(first)):
                first = second
        self.sticky = first
        self.sticky_bytes = 0
        return first

    cdef PartitionQueue _draw(self, PartitionQueue other):
        """Return a random partition, or if that is `other` or has no leader, one after it that is suitable."""
        cdef PartitionQueue drawn
        cdef int number, tried
        self._random ^= self._random << 13
        self._random ^= self._random >> 7
        self._random ^= self._random << 17
        number = <int> (self._random % <unsigned long long> self.count)
        for tried in range(self.count):
            drawn = <PartitionQueue> self.partitions[(number + tried) % self.count]
            if drawn is not other and drawn.leader >= 0:
                return drawn
        return <PartitionQueue> self.partitions[number]


cdef Py_ssize_t _backlog(PartitionQueue queue) noexcept:
    return len(queue.closed) + queue.in_flight
