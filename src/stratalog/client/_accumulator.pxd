# The records that wait to be sent: fields and methods that the kernels share.

from stratalog.client._batch cimport Batch, Delivery
from stratalog.client._direct cimport DirectPath
from stratalog.client._queues cimport PartitionQueue, TopicQueues


cdef class Accumulator:
    cdef readonly Py_ssize_t batch_size, buffer_memory, max_request_size
    cdef readonly double linger, max_block, delivery_timeout
    cdef readonly int max_in_flight
    cdef readonly bint is_idempotent
    cdef readonly Py_ssize_t used          # bytes of buffer_memory
    cdef Py_ssize_t _not_encoded           # part of `used`: rows of tables, which are still in their columns
    cdef readonly int waiting              # number of threads that wait for memory
    cdef readonly int flushing               # number of flush calls in progress: all batches are ready to be sent
    cdef readonly dict topics
    cdef readonly set incomplete           # batches that are not done
    cdef list _active                      # partitions with something to send
    cdef list _pool                        # memory of done batches, batch_size bytes each
    cdef Py_ssize_t _most_pooled
    cdef bint _is_woken
    cdef double _next_wake
    cdef public DirectPath direct          # sends from the caller's thread; None: the I/O thread sends all
    cdef public int wake_fd                # an eventfd that the I/O thread waits for; -1 after the thread has ended
    cdef object _find_topic, _refusal, _room, _value_serializer, _key_serializer
    cdef public unsigned long io_thread    # thread identifier

    cdef bint _post(self, PartitionQueue queue, Batch batch) except -1
    cdef Delivery send(self, str topic, value, key, headers, partition, timestamp, on_delivery)
    cdef int _append(self, Batch batch, bytes value, bytes key, bytes headers, long long timestamp) except -1
    cdef int _open(self, PartitionQueue queue, Py_ssize_t record_size, double *deadline) except -1
    cdef int _wait_for_room(self, Py_ssize_t size, double *deadline) except -1
    cdef int _encode_rows(self, Batch batch) except -1
    cdef int _keep(self, bytearray data) except -1
    cdef void _list(self, PartitionQueue queue) noexcept
    cdef int _refuse_if_closed(self) except -1
    cdef void _wake_sender(self) noexcept


cdef class SendPath:
    cdef readonly Accumulator _accumulator
