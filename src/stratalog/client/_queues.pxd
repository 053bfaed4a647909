# Partitions and topics, for the accumulator.

from stratalog.client._batch cimport Batch


cdef class PartitionQueue:
    cdef readonly str topic
    cdef readonly int partition
    cdef public int leader                 # node id, -1: not known
    cdef readonly Batch open               # records are written into it
    cdef readonly list closed              # to be sent before it, in this order
    cdef readonly int in_flight            # batches that are sent and not answered
    cdef public double retry_at            # monotonic seconds: nothing is sent before
    cdef public long long producer_id      # -1: none yet
    cdef public int producer_epoch
    cdef readonly int next_sequence
    cdef readonly int last_acknowledged    # sequence number, -1: none under this epoch
    cdef public bint needs_new_epoch       # a sequence number is missing, and nobody will send it
    cdef bint is_active                    # listed in the accumulator
    cdef Py_ssize_t expected_size           # size of the next batch
    cdef long long batch_count            # that were ever opened

    cdef void close(self, bint is_full) noexcept


cdef class TopicQueues:
    cdef readonly str topic
    cdef readonly list partitions
    cdef readonly int count                # of partitions that records are spread over
    cdef PartitionQueue sticky             # that records without a key go to for now
    cdef Py_ssize_t sticky_bytes           # that it got
