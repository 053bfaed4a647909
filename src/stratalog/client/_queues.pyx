# A partition's batches that are not acknowledged, and a topic's partitions. Senders append, the I/O thread takes:
# both under the GIL, without a lock; _accumulator.pyx says how.

cimport cython

from stratalog.client._batch cimport Batch

cdef enum:
    _FIRST_CAPACITY = 4096
    _SMALLEST_CAPACITY = 512
    _HIGHEST_SEQUENCE = 0x7FFFFFFF


@cython.final
cdef class PartitionQueue:
    """A partition's batches, and where it is in the sequence numbers of an idempotent producer."""

    def __cinit__(self, str topic, int partition, int leader=-1):
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.closed = []
        self.producer_id = self.producer_epoch = self.last_acknowledged = -1
        self.expected_size = _FIRST_CAPACITY

    cdef void close(self, bint is_full) noexcept:
        """The open batch, so that it is sent as it is."""
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
        """The next batch to send, which may still grow; None: there is none."""
        return self.closed[0] if self.closed else self.open

    def head(self):
        """The next batch to send: from here on nothing is written into it."""
        if not self.closed and self.open is not None:
            self.close(False)
        if not self.closed:
            raise IndexError("there is no batch")
        return self.closed[0]

    def take(self, long long producer_id, int producer_epoch):
        """The head, now under way. With a producer id it has its sequence numbers."""
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
        """Whether the broker can have been waiting for just this batch."""
        return batch.base_sequence == _after(self.last_acknowledged, 1)

    def acknowledged(self, Batch batch not None):
        self.in_flight -= 1
        if batch.producer_epoch == self.producer_epoch and batch.base_sequence >= 0:
            self.last_acknowledged = _after(batch.base_sequence, batch.record_count - 1)

    def failed(self):
        """A batch is under way no more, and won't be sent again."""
        self.in_flight -= 1

    def put_back(self, list batches):
        """Batches that were under way, or parts of one, to be sent again: before all that come after them."""
        cdef Py_ssize_t place = 0
        cdef Batch first = batches[0]
        self.in_flight -= 1
        for other in self.closed:
            if ((<Batch> other).number, (<Batch> other).start) > (first.number, first.start):
                break
            place += 1
        self.closed[place:place] = batches

    def drop_head(self):
        """The head, which is not sent any more."""
        self.head()
        return self.closed.pop(0)

    def begin_epoch(self, long long producer_id, int producer_epoch):
        """Sequence numbers from 0 on; nothing is under way. What waits gets new ones."""
        cdef Batch batch
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.last_acknowledged = -1
        self.needs_new_epoch = False
        for batch in self.closed:
            batch.base_sequence = -1


cdef inline int _after(int sequence, int count) noexcept:
    """Sequence numbers go on from 0 behind the highest."""
    return <int> ((<long long> sequence + count) & _HIGHEST_SEQUENCE)


@cython.final
cdef class TopicQueues:
    """A topic's partitions."""

    def __cinit__(self, str topic):
        self.topic = topic
        self.partitions = []

    def update(self, list leaders):
        """The node id of each partition's leader, -1: there is none. No partition is forgotten: it may hold records."""
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
