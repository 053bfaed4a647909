# The queues of partitions and topics, for the accumulator.

cimport cython

from stratalog.client._batch cimport Batch

cdef enum:
    STICKY_BYTES = 16384  # after so many bytes, keyless records go to another partition once the batch is closed


cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int partition
    cdef public int leader                 # node id; -1 if unknown
    cdef readonly Batch open               # the batch that records are written into
    cdef readonly list closed              # batches to send before it, in this order
    cdef readonly int in_flight            # number of batches that are sent and not acknowledged
    cdef public double retry_at            # monotonic seconds; nothing is sent before
    cdef public long long producer_id      # -1 before the first batch
    cdef public int producer_epoch
    cdef readonly int next_sequence
    cdef readonly int last_acknowledged    # a sequence number; -1 before the first of this epoch
    cdef public bint needs_new_epoch       # a sequence number is missing, and no batch with it will be sent
    cdef bint is_active                    # in the accumulator's list
    cdef Py_ssize_t expected_size           # size of the next batch
    cdef long long batch_count            # number of batches that were ever opened

    cdef void close(self, bint is_full) noexcept


@cython.final
cdef class TopicQueues:
    cdef readonly str topic
    cdef readonly list partitions
    cdef readonly int count                # number of partitions that records are distributed over
    cdef PartitionQueue sticky             # the partition that gets the records without a key for now
    cdef Py_ssize_t sticky_bytes           # how many bytes of them it got
    cdef unsigned long long _random

    cdef inline PartitionQueue queue_without_key(self):
        """Return the partition for records without a key. Inlined, since `send` calls it for every record."""
        cdef PartitionQueue now = self.sticky
        if now is not None and (now.open is not None or self.sticky_bytes < STICKY_BYTES) and now.leader >= 0:
            return now
        return self._choose()

    cdef inline void leave_sticky_queue(self) noexcept:
        """Choose another partition for the next record without a key. The open batch was closed."""
        self.sticky_bytes = STICKY_BYTES

    cdef PartitionQueue _choose(self)
    cdef PartitionQueue _draw(self, PartitionQueue other)
