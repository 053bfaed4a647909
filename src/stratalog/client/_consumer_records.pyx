# What a consumer got of one partition, from bytes to records: the loops between a fetch response and the user. Records are
# made one by one as they are taken, so that the position is right at each of them. Control records are left out, and with
# read_committed those of aborted transactions. Each length is checked before use; nothing past a bound is inflated.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8

from stratalog.records._column_decoder cimport ColumnDecoder
from stratalog.records._crc32c cimport crc32c_fast, crc32c_is_fast
from stratalog.records._framing cimport BatchHeader, checksum, fill_header
from stratalog.records._record_fields cimport (
    SMALLEST_RECORD, HeaderFields, RecordFields, read_header, read_record,
)
from stratalog.records._varint cimport load16, load32, load64
from stratalog.records.format cimport (
    ATTRIBUTES_POSITION, BASE_TIMESTAMP_POSITION, BATCH_LENGTH_POSITION, CODEC_MASK, CONTROL_BIT, CONTROL_KEY_SIZE,
    CONTROL_TYPE_ABORT, CONTROL_TYPE_POSITION, CRC_POSITION, CURRENT_MAGIC, HEADER_SIZE, LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAX_TIMESTAMP_POSITION, RECORD_COUNT_POSITION,
    TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
)

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.records import compression, legacy
from stratalog.records.batch import Batch

cdef long long _LAST_OFFSET = 0x7FFFFFFFFFFFFFFF


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class ConsumerRecord:
    """One record, as consumed: where it is from, when, and what it says. Compares by value."""

    # No garbage collection: a record holds no container that could come to hold the record, but for what a user's
    # deserializer makes, and that would have to be made to point back at it by hand.
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


@cython.final
cdef class Progress:
    """How far a partition was consumed. One of its own for each assignment and seek: what was fetched for an older one is
    known by that, and dropped."""

    cdef public long long offset      # of the record that comes next; -1: not known yet
    cdef public int leader_epoch      # of the last batch that was taken from; -1: not known

    def __init__(self, long long offset=-1, int leader_epoch=-1):
        self.offset = offset
        self.leader_epoch = leader_epoch

    def __repr__(self):
        return f"Progress(offset={self.offset}, leader_epoch={self.leader_epoch})"


cdef inline bytes _bytes(const unsigned char *data, int length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char *>data, length)


# Not for the cyclic collector: it would take the bytes away from under the views, whose release it does not know of.
@cython.no_gc
@cython.final
cdef class FetchedRecords:
    """The records of one partition in one fetch response, and how far they were taken.

    `body[start:end]` are batches, of which the last may be cut off. `progress` moves with each record taken. An error
    leaves it where it is: the next call raises it again, until somebody seeks past.
    """

    cdef readonly object place            # a TopicPartition
    cdef readonly Progress progress
    cdef readonly Py_ssize_t size
    cdef readonly long long fetch_offset
    cdef readonly long long end_offset    # behind the last whole batch: where to fetch next
    cdef readonly int end_epoch           # that batch's leader epoch; -1: not known
    cdef readonly Py_ssize_t record_count # as the headers say it, and no more than there is room for: a hint
    cdef readonly bint is_exhausted       # everything was taken
    cdef readonly bint is_sound           # whether batch follows batch, up to one that is cut off
    cdef object _body
    cdef object _decompressed                 # keeps the payload of a compressed batch
    cdef Py_buffer _view
    cdef Py_buffer _payload_view
    cdef bint _has_view
    cdef bint _is_decompressed                # the payload is in _payload_view
    cdef Py_ssize_t _start
    cdef Py_ssize_t _at                   # of the next batch
    cdef Py_ssize_t _end
    cdef BatchHeader _header
    cdef const unsigned char *_p          # the next record of the loaded batch
    cdef const unsigned char *_payload_end
    cdef int _left                        # records of it
    cdef long long _next_batch_offset     # behind the loaded batch
    cdef int _timestamp_type
    cdef list _legacy                     # records of a loaded message of magic 0 or 1, the last one first
    cdef list _aborted                    # (first offset, producer id), the first one last
    cdef set _aborted_producers
    cdef bint _read_committed
    cdef bint _check_crcs
    cdef Py_ssize_t _max_decompressed
    cdef object _key_deserializer
    cdef object _value_deserializer

    def __init__(
        self, place, Progress progress, long long fetch_offset, body, Py_ssize_t start, Py_ssize_t end, *, aborted=None,
        bint read_committed=False, bint check_crcs=True, Py_ssize_t max_decompressed=256 * 1024 * 1024,
        key_deserializer=None, value_deserializer=None,
    ):
        PyObject_GetBuffer(body, &self._view, PyBUF_SIMPLE)
        self._has_view = True
        if not 0 <= start <= end <= self._view.len:
            raise ValueError(f"range {start}..{end} is outside the body of {self._view.len} bytes")
        self.place = place
        self.progress = progress
        self.fetch_offset = fetch_offset
        self.size = end - start
        self._body = body
        self._start = self._at = start
        self._end = end
        self._header = BatchHeader.__new__(BatchHeader)
        self._aborted = sorted([(first, producer) for producer, first in aborted or ()], reverse=True)
        self._aborted_producers = set()
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_decompressed = max_decompressed
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._find_end()

    cdef int _find_end(self) except -1:
        """Step from batch to batch by their lengths. What is wrong inside one is seen when it is read."""
        cdef const unsigned char *data = <const unsigned char *>self._view.buf
        cdef Py_ssize_t at = self._start
        cdef Py_ssize_t size
        self.end_offset = self.fetch_offset
        self.end_epoch = -1
        while self._end - at > MAGIC_POSITION:
            size = <Py_ssize_t><int>load32(data + at + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            if size <= MAGIC_POSITION:
                return 0
            if size > self._end - at:
                break
            if data[at + MAGIC_POSITION] == CURRENT_MAGIC and size >= HEADER_SIZE:
                self.end_offset = <long long>load64(data + at) + <int>load32(data + at + LAST_OFFSET_DELTA_POSITION) + 1
                self.end_epoch = <int>load32(data + at + LEADER_EPOCH_POSITION)
                self.record_count += min(load32(data + at + RECORD_COUNT_POSITION), <unsigned int>(size // SMALLEST_RECORD))
            else:
                self.end_offset = <long long>load64(data + at) + 1
            at += size
        self.is_sound = self.end_offset > self.fetch_offset
        return 0

    def __dealloc__(self):
        if self._is_decompressed:
            PyBuffer_Release(&self._payload_view)
        if self._has_view:
            PyBuffer_Release(&self._view)

    def take(self, Py_ssize_t most):
        """The next records, at most so many; an empty list: there are no more. With an error behind some, those."""
        cdef list records = []
        cdef ConsumerRecord record
        while most > 0:
            try:
                record = self.next_record()
            except Exception:
                if records:
                    break
                raise
            if record is None:
                break
            records.append(record)
            most -= 1
        return records

    def take_columns(self, ColumnDecoder decoder, Py_ssize_t most):
        """Decode the next records into columns, behind what is there, at most so many; how many there were.

        An error that lies behind some is for the next call. The decoder has only what counts.
        """
        cdef Py_ssize_t before = decoder.rows
        while decoder.rows - before < most:
            if self._left == 0 and self._legacy is None and self._take_plain(decoder, most - (decoder.rows - before)):
                continue
            mark = decoder.mark()
            try:
                if not self._take_batch(decoder, most - (decoder.rows - before)):
                    break
            except Exception:
                decoder.cut(mark)
                if decoder.rows > before:
                    break
                raise
        return decoder.rows - before

    cdef bint _take_plain(self, ColumnDecoder decoder, Py_ssize_t most) except -1:
        """Decode those of the next batches that need nothing else, up to so many records, in one go without the GIL: in the
        short moments between batches a thread that waits for it would not get it. False: there are none, or something
        is wrong with the first."""
        cdef const unsigned char *data = <const unsigned char *>self._view.buf
        cdef long long start_offset = self.progress.offset
        cdef Py_ssize_t rows = 0, content = 0, end = self._at, behind, last = -1
        cdef Py_ssize_t good_rows = 0, good_header_rows = 0
        if self._check_crcs and not crc32c_is_fast():
            return False
        while self._is_plain(data + end, self._end - end, start_offset):
            if rows + <int>load32(data + end + RECORD_COUNT_POSITION) > most:
                break
            rows += <int>load32(data + end + RECORD_COUNT_POSITION)
            content += <int>load32(data + end + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            end += <int>load32(data + end + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
        if rows == 0 or max(decoder.key.data.size, decoder.value.data.size) + content > decoder.most_content:
            return False
        mark = decoder.mark()
        decoder.reserve(rows, content)
        with nogil:
            behind = self._decode_plain(decoder, data, end, start_offset, &last, &good_rows, &good_header_rows)
        if behind < end:
            decoder.cut((good_rows, good_header_rows))
        if last < 0:
            return False
        try:
            decoder.check_limit()
        except OverflowError:  # by headers
            decoder.cut(mark)
            return False
        fill_header(self._header, data, last, self._end)
        self._at = behind
        self._next_batch_offset = self._header.base_offset + self._header.last_offset_delta + 1
        self._advance(self._next_batch_offset)
        return True

    cdef bint _is_plain(self, const unsigned char *batch, Py_ssize_t left, long long start_offset) except -1:
        """Whether a whole batch is there whose records are the user's, as they lie there."""
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
        """Up to `end`, or before the first batch that is damaged; the position behind, that of the last, and what the
        decoder has of all that is good."""
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

    cdef bint _take_batch(self, ColumnDecoder decoder, Py_ssize_t most) except -1:
        """Of one batch, at most so many. False: there is none."""
        cdef long long end_offset = _LAST_OFFSET
        if self._left == 0 and not self._legacy and not self._load():
            return False
        if self._legacy is not None:
            self._take_legacy(decoder, most)
            return True
        if self._left > most:
            end_offset = max(self.progress.offset, self._header.base_offset) + most
        self._decode_batch(decoder, end_offset)
        return True

    cdef int _decode_batch(self, ColumnDecoder decoder, long long end_offset) except -1:
        """From the batch's start: records that were taken already are skipped by their offset."""
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
            # Some of the batch is left. Its records are found again by their offsets, which is what _left is then not for.
            self._advance(end_offset)
            while self._left > 0 and self._skip_taken():
                pass
            if self._left == 0:
                self._advance(self._next_batch_offset)
        return 0

    cdef const unsigned char *_payload_start(self):
        if self._is_decompressed:
            return <const unsigned char *>self._payload_view.buf
        return <const unsigned char *>self._view.buf + self._header.position + HEADER_SIZE

    cdef bint _skip_taken(self) except -1:
        """Whether the next record lies before the position; then it is stepped over."""
        cdef RecordFields fields
        cdef const char *problem = read_record(self._p, self._payload_end, &fields)
        if problem != NULL:
            raise self._corrupt(problem.decode())
        if self._header.base_offset + fields.offset_delta >= self.progress.offset:
            return False
        self._p = fields.end
        self._left -= 1
        return True

    cdef int _take_legacy(self, ColumnDecoder decoder, Py_ssize_t most) except -1:
        cdef list some = []
        while self._legacy and len(some) < most:
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
        """The next one; None: there are no more, and the position is behind the last batch."""
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
                raise self._corrupt("bytes are left over behind the last record")
            # Unsigned: a corrupt delta may wrap around, as it does in Java, but that must be defined.
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
            record.topic_partition = <tuple>self.place
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
        # A tombstone stays None: there is nothing to deserialize.
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
                f"{field} of the record at offset {offset} of {self.place[0]}-{self.place[1]} can't be deserialized: "
                f"{type(error).__name__}: {error}; seek to offset {offset + 1} to leave it out"
            ) from error

    cdef ConsumerRecord _next_legacy(self):
        cdef ConsumerRecord made
        while self._legacy:
            found = self._legacy[len(self._legacy) - 1]
            if found.offset < self.progress.offset:
                self._legacy.pop()
                continue
            made = ConsumerRecord.__new__(ConsumerRecord)
            made.topic_partition = <tuple>self.place
            made.offset = found.offset
            made.timestamp = found.timestamp
            made.timestamp_type = found.timestamp_type
            made.leader_epoch = -1
            made.key, made.value, made.headers = found.key, found.value, found.headers
            self._deserialize(made)
            self._legacy.pop()
            self.progress.offset = made.offset + 1
            return made
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
            raise self._corrupt("length leaves bytes over")
        return headers

    cdef int _advance(self, long long offset) noexcept:
        if offset > self.progress.offset:
            self.progress.offset = offset
        if self._header.magic == CURRENT_MAGIC:
            self.progress.leader_epoch = self._header.leader_epoch
        return 0

    cdef bint _load(self) except -1:
        """Make the next batch with records for the user ready. False: there is none."""
        cdef BatchHeader header = self._header
        while True:
            if self._is_decompressed:
                self._is_decompressed = False
                PyBuffer_Release(&self._payload_view)
                self._decompressed = None
            if not self._next_header():
                self.is_exhausted = True
                return False
            self._next_batch_offset = header.base_offset + header.last_offset_delta + 1
            if header.last_offset_delta < 0:
                raise self._corrupt(f"last offset delta is {header.last_offset_delta}")
            if self._next_batch_offset > self.progress.offset and not self._is_hidden():
                self._load_payload()
                self._at = header.position + header.size
                if self._left or self._legacy is not None:
                    return True
            self._at = header.position + header.size
            self._advance(self._next_batch_offset)

    cdef bint _next_header(self) except -1:
        if self._at >= self._end:
            return False
        try:
            if fill_header(self._header, <const unsigned char *>self._view.buf, self._at, self._end):
                if self._header.size <= self._end - self._at:
                    return True
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error))) from error
        if self._at == self._start:
            raise CorruptBatchError(
                f"{self.place[0]}-{self.place[1]}: the {self.size} bytes fetched at offset {self.progress.offset} are less "
                "than one batch; make max_partition_fetch_bytes larger"
            )
        return False

    cdef bint _is_hidden(self) except -1:
        """Whether the batch is no business of the user: a control batch, or with read_committed an aborted one."""
        cdef BatchHeader header = self._header
        if header.magic != CURRENT_MAGIC:
            return False
        if self._read_committed and header.producer_id >= 0:
            while self._aborted and self._aborted[len(self._aborted) - 1][0] < self._next_batch_offset:
                self._aborted_producers.add(self._aborted.pop()[1])
            if header.attributes & CONTROL_BIT:
                if self._is_abort_marker():
                    self._aborted_producers.discard(header.producer_id)
            elif header.attributes & TRANSACTIONAL_BIT and header.producer_id in self._aborted_producers:
                return True
        return (header.attributes & CONTROL_BIT) != 0

    cdef bint _is_abort_marker(self) except -1:
        cdef RecordFields fields
        cdef const unsigned char *batch = <const unsigned char *>self._view.buf + self._header.position
        cdef const char *problem = read_record(batch + HEADER_SIZE, batch + self._header.size, &fields)
        if problem != NULL:
            raise self._corrupt(problem.decode())
        return fields.key_length >= CONTROL_KEY_SIZE and (
            load16(fields.key + CONTROL_TYPE_POSITION) == CONTROL_TYPE_ABORT
        )

    cdef int _load_payload(self) except -1:
        cdef BatchHeader header = self._header
        cdef const unsigned char *batch = <const unsigned char *>self._view.buf + header.position
        if header.magic != CURRENT_MAGIC:
            return self._load_legacy()
        if self._check_crcs and checksum(batch, header) != header.crc:
            raise self._corrupt(f"its checksum is not the one in its header, {header.crc:#010x}")
        self._p = batch + HEADER_SIZE
        self._payload_end = batch + header.size
        if header.attributes & CODEC_MASK:
            self._decompress()
        self._timestamp_type = 1 if header.attributes & TIMESTAMP_TYPE_BIT else 0
        if header.record_count < 0 or header.record_count > (self._payload_end - self._p) // SMALLEST_RECORD:
            raise self._corrupt(
                f"record count is {header.record_count}, which {self._payload_end - self._p} bytes of records can't be"
            )
        self._left = header.record_count
        return 0

    cdef int _decompress(self) except -1:
        cdef BatchHeader header = self._header
        packed = memoryview(self._body)[header.position + HEADER_SIZE : header.position + header.size]
        try:
            self._decompressed = compression.decompress(header.attributes & CODEC_MASK, packed, self._max_decompressed)
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error)), type(error)) from error
        PyObject_GetBuffer(self._decompressed, &self._payload_view, PyBUF_SIMPLE)
        self._is_decompressed = True
        self._p = <const unsigned char *>self._payload_view.buf
        self._payload_end = self._p + self._payload_view.len
        return 0

    cdef int _load_legacy(self) except -1:
        batch = Batch(self._body, self._header)
        try:
            if self._check_crcs:
                batch.check_crc()
            self._legacy = legacy.records_of_message(batch, self._max_decompressed)[::-1]
        except StratalogError as error:
            raise self._corrupt(getattr(error, "reason", str(error)), type(error)) from error
        return 0

    def _corrupt(self, problem, kind=CorruptBatchError):
        if not issubclass(kind, CorruptBatchError):
            kind = CorruptBatchError
        return kind(
            f"{self.place[0]}-{self.place[1]}: the batch at offset {self._header.base_offset} can't be read: {problem}; "
            "seek behind it to leave it out"
        )


@cython.final
cdef class Interrupt:
    """What the I/O thread tells an iteration that is going on: that something else than records waits for it. And the
    other way round: that records are being taken, so that a slow loop over many records does not look like a stopped one."""

    cdef public bint is_set
    cdef public unsigned long long taken


@cython.final
cdef class RecordIterator:
    """Records one by one. `refill` is asked for the next FetchedRecords when one is used up, or the interrupt is set."""

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
