# The batches of one partition in a fetch response, loaded one by one: the base of FetchedRecords.

from stratalog.records._framing cimport BatchHeader


cdef class Progress:
    cdef public long long offset      # of the next record; -1: not known yet
    cdef public int leader_epoch      # of the last batch that records were taken from; -1: not known


cdef class FetchedBatches:
    cdef readonly object partition        # a TopicPartition
    cdef readonly Progress progress
    cdef readonly Py_ssize_t size
    cdef readonly long long fetch_offset
    cdef readonly long long end_offset    # after the last complete batch: where the next fetch starts
    cdef readonly int end_epoch           # the leader epoch of that batch; -1: not known
    cdef readonly Py_ssize_t record_count # according to the headers, limited by the size: a hint
    cdef readonly bint is_exhausted       # everything was taken
    cdef readonly bint is_well_formed     # batch follows batch, up to a last one that may be incomplete
    cdef object _body
    cdef object _decompressed             # keeps the payload of a compressed batch alive
    cdef Py_buffer _view
    cdef Py_buffer _payload_view
    cdef bint _has_view
    cdef bint _is_decompressed            # the payload is in _payload_view
    cdef Py_ssize_t _start
    cdef Py_ssize_t _at                   # the position of the next batch
    cdef Py_ssize_t _end
    cdef BatchHeader _header
    cdef const unsigned char *_p          # the next record of the loaded batch
    cdef const unsigned char *_payload_end
    cdef int _left                        # how many records of the loaded batch are left
    cdef long long _next_batch_offset     # the offset after the loaded batch
    cdef int _timestamp_type
    cdef list _legacy                     # records of a loaded message of magic 0 or 1, in reverse order
    cdef list _aborted                    # (first offset, producer id), in reverse order
    cdef set _aborted_producers
    cdef bint _read_committed
    cdef bint _check_crcs
    cdef Py_ssize_t _max_decompressed

    cdef int _open(
        self, partition, Progress progress, long long fetch_offset, body, Py_ssize_t start, Py_ssize_t end, aborted,
        bint read_committed, bint check_crcs, Py_ssize_t max_decompressed,
    ) except -1
    cdef int _find_end(self) except -1
    cdef const unsigned char *_payload_start(self)
    cdef int _advance(self, long long offset) noexcept
    cdef bint _load(self) except -1
    cdef bint _next_header(self) except -1
    cdef bint _is_hidden(self) except -1
    cdef bint _is_abort_marker(self) except -1
    cdef int _load_payload(self) except -1
    cdef int _decompress(self) except -1
    cdef int _load_legacy(self) except -1
    cdef object _corrupt(self, problem, kind=*)
