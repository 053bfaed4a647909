# Records of a fetch response, as the user gets them: one by one, or as columns. A record is created when it is taken,
# so the consumer's position is right at each record. _fetched_batches.pyx loads the batches that the records are in,
# and skips those that the user must not see.

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8

from stratalog.client._fetched_batches cimport FetchedBatches, Progress
from stratalog.records._column_decoder cimport ColumnDecoder
from stratalog.records._crc32c cimport crc32c_fast, crc32c_is_fast
from stratalog.records._framing cimport fill_header
from stratalog.records._record_fields cimport SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record
from stratalog.records._varint cimport load16, load32, load64
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION, BASE_TIMESTAMP_POSITION, BATCH_LENGTH_POSITION, CODEC_MASK, CONTROL_BIT, CRC_POSITION,
    CURRENT_MAGIC, HEADER_SIZE, LAST_OFFSET_DELTA_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAX_TIMESTAMP_POSITION,
    RECORD_COUNT_POSITION, TIMESTAMP_TYPE_BIT,
)

from stratalog.errors import CorruptBatchError

cdef long long _LAST_OFFSET = 0x7FFFFFFFFFFFFFFF



@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class ConsumerRecord:
    """A consumed record: its partition, offset, timestamp, key, value and headers. Records compare by value."""

    # No garbage collection: a record refers to no container that could refer back to it. Only the result of a user's
    # deserializer could, and the user would have to make it do so.
    cdef tuple topic_partition
    cdef readonly long long offset
    cdef readonly long long timestamp
    cdef readonly int timestamp_type
    cdef readonly int leader_epoch
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    def __init__(
        self, str topic, int partition, long long offset, *, long long timestamp=-1, int timestamp_type=0, key=None,
        value=None, tuple headers=(), int leader_epoch=-1,
    ):
        self.topic_partition = (topic, partition)
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    @property
    def topic(self):
        return self.topic_partition[0]

    @property
    def partition(self):
        return self.topic_partition[1]

    def _fields(self):
        return (
            self.topic_partition[0], self.topic_partition[1], self.offset, self.timestamp, self.timestamp_type, self.key, self.value,
            self.headers, self.leader_epoch,
        )

    def __eq__(self, other):
        if type(other) is not ConsumerRecord:
            return NotImplemented
        return self._fields() == (<ConsumerRecord>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return _restore_record, self._fields()


def _restore_record(topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch):
    return ConsumerRecord(
        topic, partition, offset, timestamp=timestamp, timestamp_type=timestamp_type, key=key, value=value,
        headers=headers, leader_epoch=leader_epoch,
    )


cdef inline bytes _bytes(const unsigned char *data, int length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>data, length)


# Like FetchedBatches, without support for the cyclic garbage collector.
@cython.no_gc
@cython.final
cdef class FetchedRecords(FetchedBatches):
    """The records of one partition in one fetch response. `progress` moves with each record that is taken."""

    cdef object _key_deserializer
    cdef object _value_deserializer

    def __init__(
        self, partition, Progress progress, long long fetch_offset, body, Py_ssize_t start, Py_ssize_t end, *,
        aborted=None, bint read_committed=False, bint check_crcs=True, Py_ssize_t max_decompressed=256 * 1024 * 1024,
        key_deserializer=None, value_deserializer=None,
    ):
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._open(
            partition, progress, fetch_offset, body, start, end, aborted, read_committed, check_crcs, max_decompressed
        )

    def take(self, Py_ssize_t limit):
        """Return the next records, at most `limit`, or an empty list at the end. If records come before an error,
        return those, and raise the error in the next call."""
        cdef list records = []
        cdef ConsumerRecord record
        while limit > 0:
            try:
                record = self.next_record()
            except Exception:
                if records:
                    break
                raise
            if record is None:
                break
            records.append(record)
            limit -= 1
        return records

    def take_columns(self, ColumnDecoder decoder, Py_ssize_t limit):
        """Decode the next records into columns, after the rows that are there, and return how many they were.

        Decodes at most `limit` records. If records come before an error, the next call raises the error. The decoder
        never contains rows of a corrupt batch.
        """
        cdef Py_ssize_t before = decoder.rows
        while decoder.rows - before < limit:
            if self._left == 0 and self._legacy is None and self._take_plain(decoder, limit - (decoder.rows - before)):
                continue
            mark = decoder.mark()
            try:
                if not self._take_batch(decoder, limit - (decoder.rows - before)):
                    break
            except Exception:
                decoder.cut(mark)
                if decoder.rows > before:
                    break
                raise
        return decoder.rows - before

    cdef bint _take_plain(self, ColumnDecoder decoder, Py_ssize_t limit) except -1:
        """Decode as many as possible of the next batches that need only decoding, up to `limit` records, in one step
        without the GIL. Releasing it per batch would not help: a waiting thread can't get it in such short intervals.
        Return False if there is no such batch or the first of them is corrupt."""
        cdef const unsigned char *data = <const unsigned char *>self._view.buf
        cdef long long start_offset = self.progress.offset
        cdef Py_ssize_t rows = 0, content = 0, end = self._at, position, last = -1
        cdef Py_ssize_t good_rows = 0, good_header_rows = 0
        if self._check_crcs and not crc32c_is_fast():
            return False
        while self._is_plain(data + end, self._end - end, start_offset):
            if rows + <int>load32(data + end + RECORD_COUNT_POSITION) > limit:
                break
            rows += <int>load32(data + end + RECORD_COUNT_POSITION)
            content += <int>load32(data + end + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            end += <int>load32(data + end + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
        if rows == 0 or max(decoder.key.data.size, decoder.value.data.size) + content > decoder.most_content:
            return False
        mark = decoder.mark()
        decoder.reserve(rows, content)
        with nogil:
            position = self._decode_plain(decoder, data, end, start_offset, &last, &good_rows, &good_header_rows)
        if position < end:
            decoder.cut((good_rows, good_header_rows))
        if last < 0:
            return False
        try:
            decoder.check_limit()
        except OverflowError:  # because of headers
            decoder.cut(mark)
            return False
        fill_header(self._header, data, last, self._end)
        self._at = position
        self._next_batch_offset = self._header.base_offset + self._header.last_offset_delta + 1
        self._advance(self._next_batch_offset)
        return True

    cdef bint _is_plain(self, const unsigned char *batch, Py_ssize_t left, long long start_offset) except -1:
        """Return whether a complete batch is there that can be decoded as it is: uncompressed user records."""
        cdef Py_ssize_t size
        cdef int count, last_offset_delta
        if left < HEADER_SIZE or batch[MAGIC_POSITION] != CURRENT_MAGIC:
            return False
        size = <Py_ssize_t><int>load32(batch + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
        count = <int>load32(batch + RECORD_COUNT_POSITION)
        last_offset_delta = <int>load32(batch + LAST_OFFSET_DELTA_POSITION)
        if size < HEADER_SIZE or size > left or count <= 0 or count > (size - HEADER_SIZE) // SMALLEST_RECORD:
            return False
        if load16(batch + ATTRIBUTES_POSITION) & (CODEC_MASK | CONTROL_BIT):
            return False
        if last_offset_delta < 0 or <long long>load64(batch) + last_offset_delta < start_offset:
            return False
        return not (self._aborted or self._aborted_producers)

    cdef Py_ssize_t _decode_plain(
        self, ColumnDecoder decoder, const unsigned char *data, Py_ssize_t end, long long start_offset,
        Py_ssize_t *last, Py_ssize_t *good_rows, Py_ssize_t *good_header_rows,
    ) noexcept nogil:
        """Decode batches up to `end`, or up to the first corrupt batch. Return the position after the last decoded
        batch. `last` receives the position of that batch, and the other two the row counts of the decoder after it."""
        cdef Py_ssize_t at = self._at, size
        cdef const unsigned char *batch
        cdef bint is_append_time
        while at < end:
            batch = data + at
            size = <Py_ssize_t><int>load32(batch + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            good_rows[0], good_header_rows[0] = decoder.rows, decoder.header_key.rows
            if self._check_crcs:
                if crc32c_fast(batch + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION) != load32(batch + CRC_POSITION):
                    break
            is_append_time = (load16(batch + ATTRIBUTES_POSITION) & TIMESTAMP_TYPE_BIT) != 0
            if decoder.decode(
                batch + HEADER_SIZE, size - HEADER_SIZE, <int>load32(batch + RECORD_COUNT_POSITION),
                <long long>load64(batch), <long long>load64(batch + BASE_TIMESTAMP_POSITION), is_append_time,
                <long long>load64(batch + MAX_TIMESTAMP_POSITION), start_offset, _LAST_OFFSET,
            ):
                break
            last[0] = at
            at += size
        return at

    cdef bint _take_batch(self, ColumnDecoder decoder, Py_ssize_t limit) except -1:
        """Decode at most `limit` records of one batch. Return False if there is no further batch."""
        cdef long long end_offset = _LAST_OFFSET
        if self._left == 0 and not self._legacy and not self._load():
            return False
        if self._legacy is not None:
            self._take_legacy(decoder, limit)
            return True
        if self._left > limit:
            end_offset = max(self.progress.offset, self._header.base_offset) + limit
        self._decode_batch(decoder, end_offset)
        return True

    cdef int _decode_batch(self, ColumnDecoder decoder, long long end_offset) except -1:
        """Decode from the start of the batch, and skip records that were already taken by their offsets."""
        cdef const unsigned char *payload = self._payload_start()
        try:
            decoder.add_payload(
                payload, self._payload_end - payload, self._header.record_count, self._header.base_offset,
                self._header.base_timestamp, self._timestamp_type, self._header.max_timestamp, self.progress.offset,
                end_offset,
            )
        except CorruptBatchError as error:
            raise self._corrupt(error.reason) from error
        if end_offset >= self._next_batch_offset:
            self._left = 0
            self._advance(self._next_batch_offset)
        else:
            # Part of the batch is left. The next call finds its records by their offsets, so step over the taken ones.
            self._advance(end_offset)
            while self._left > 0 and self._skip_taken():
                pass
            if self._left == 0:
                self._advance(self._next_batch_offset)
        return 0

    cdef bint _skip_taken(self) except -1:
        """Step over the next record if its offset is before the position. Return False if it is not."""
        cdef RecordFields fields
        cdef const char *problem = read_record(self._p, self._payload_end, &fields)
        if problem != NULL:
            raise self._corrupt(problem.decode())
        if self._header.base_offset + fields.offset_delta >= self.progress.offset:
            return False
        self._p = fields.end
        self._left -= 1
        return True

    cdef int _take_legacy(self, ColumnDecoder decoder, Py_ssize_t limit) except -1:
        cdef list some = []
        while self._legacy and len(some) < limit:
            record = self._legacy.pop()
            if record.offset >= self.progress.offset:
                some.append(record)
        try:
            decoder.add_records(some)
        except Exception:
            self._legacy += reversed(some)
            raise
        if some:
            self._advance(some[len(some) - 1].offset + 1)
        if not self._legacy:
            self._legacy = None
            self._advance(self._next_batch_offset)
        return 0

    cdef ConsumerRecord next_record(self):
        """Return the next record, or None at the end, when the position is after the last batch."""
        cdef RecordFields fields
        cdef ConsumerRecord record
        cdef const char *problem
        cdef long long offset
        while True:
            if self._left == 0:
                if self._legacy is not None:
                    record = self._next_legacy()
                    if record is not None:
                        return record
                if not self._load():
                    return None
                continue
            problem = read_record(self._p, self._payload_end, &fields)
            if problem != NULL:
                raise self._corrupt(problem.decode())
            if self._left == 1 and fields.end != self._payload_end:
                raise self._corrupt("the batch has bytes after its last record")
            # Unsigned, because a corrupt delta may overflow. It then wraps around, as in Java.
            offset = <long long>(
                <unsigned long long>self._header.base_offset + <unsigned long long>fields.offset_delta
            )
            if offset < self.progress.offset:
                self._p = fields.end
                self._left -= 1
                if self._left == 0:
                    self._advance(self._next_batch_offset)
                continue
            record = ConsumerRecord.__new__(ConsumerRecord)
            record.topic_partition = <tuple>self.partition
            record.offset = offset
            record.leader_epoch = self._header.leader_epoch
            record.timestamp_type = self._timestamp_type
            if self._timestamp_type == 1:
                record.timestamp = self._header.max_timestamp
            else:
                record.timestamp = <long long>(
                    <unsigned long long>self._header.base_timestamp + <unsigned long long>fields.timestamp_delta
                )
            record.key = _bytes(fields.key, fields.key_length)
            record.value = _bytes(fields.value, fields.value_length)
            record.headers = () if fields.header_count == 0 else self._headers(&fields)
            if self._key_deserializer is not None or self._value_deserializer is not None:
                self._deserialize(record)
            self._p = fields.end
            self._left -= 1
            self.progress.leader_epoch = self._header.leader_epoch
            self.progress.offset = offset + 1 if self._left else self._next_batch_offset
            return record

    cdef int _deserialize(self, ConsumerRecord record) except -1:
        # A tombstone's value stays None: there is nothing to deserialize.
        if self._key_deserializer is not None and record.key is not None:
            record.key = self._deserialized(self._key_deserializer, record.key, "key", record.offset)
        if self._value_deserializer is not None and record.value is not None:
            record.value = self._deserialized(self._value_deserializer, record.value, "value", record.offset)
        return 0

    def _deserialized(self, deserializer, content, field, offset):
        try:
            return deserializer(content)
        except Exception as error:
            from stratalog.client.errors import DeserializationError

            raise DeserializationError(
                f"{field} of the record at offset {offset} of {self.partition[0]}-{self.partition[1]} can't be "
                f"deserialized: {type(error).__name__}: {error}; seek to offset {offset + 1} to skip it"
            ) from error

    cdef ConsumerRecord _next_legacy(self):
        cdef ConsumerRecord record
        while self._legacy:
            source = self._legacy[len(self._legacy) - 1]
            if source.offset < self.progress.offset:
                self._legacy.pop()
                continue
            record = ConsumerRecord.__new__(ConsumerRecord)
            record.topic_partition = <tuple>self.partition
            record.offset = source.offset
            record.timestamp = source.timestamp
            record.timestamp_type = source.timestamp_type
            record.leader_epoch = -1
            record.key, record.value, record.headers = source.key, source.value, source.headers
            self._deserialize(record)
            self._legacy.pop()
            self.progress.offset = record.offset + 1
            return record
        self._legacy = None
        self._advance(self._next_batch_offset)
        return None

    cdef tuple _headers(self, RecordFields *fields):
        cdef const unsigned char *cursor = fields.headers
        cdef HeaderFields header
        cdef const char *problem
        cdef tuple headers = PyTuple_New(fields.header_count)
        cdef tuple pair
        cdef int i
        for i in range(fields.header_count):
            problem = read_header(&cursor, fields.end, &header)
            if problem != NULL:
                raise self._corrupt(problem.decode())
            try:
                key = PyUnicode_DecodeUTF8(<char *>header.key, header.key_length, NULL)
            except UnicodeDecodeError as error:
                raise self._corrupt(f"key of header {i} is not UTF-8: {error}") from None
            pair = (key, _bytes(header.value, header.value_length))
            Py_INCREF(pair)
            PyTuple_SET_ITEM(headers, i, pair)
        if cursor != fields.end:
            raise self._corrupt("the record has bytes after its last header")
        return headers


@cython.final
cdef class Interrupt:
    """Flags between the I/O thread and an iteration. `is_set` tells the iteration that something other than records
    needs its attention. `taken` counts records, so that a slow loop does not look like a stopped one."""

    cdef public bint is_set
    cdef public unsigned long long taken


@cython.final
cdef class RecordIterator:
    """Iterates over records. It calls `refill` for the next FetchedRecords after the last record, and when the
    interrupt is set."""

    cdef object _refill
    cdef Interrupt _interrupt
    cdef FetchedRecords _current

    def __init__(self, refill, Interrupt interrupt):
        self._refill = refill
        self._interrupt = interrupt

    def __iter__(self):
        return self

    def __next__(self):
        cdef ConsumerRecord record
        while True:
            if self._current is not None and not self._interrupt.is_set:
                record = self._current.next_record()
                if record is not None:
                    self._interrupt.taken += 1
                    return record
            self._current = self._refill(self._current)
            if self._current is None:
                raise StopIteration
