# The fields of one record. All kernels that read records use these functions, so lengths are checked before use in one
# place.
#
# A record: length, attributes (i8), timestamp delta, offset delta, key length, key, value length, value, header
# count, then for each header: key length, key, value length, value. All numbers except the attributes are varints.

from stratalog.records._varint cimport read_varint, read_varlong

cdef enum:
    SMALLEST_RECORD = 7  # a byte for each field
    SMALLEST_HEADER = 2


cdef struct RecordFields:
    long long timestamp_delta
    const unsigned char *key
    const unsigned char *value
    const unsigned char *headers  # the first header
    const unsigned char *end      # after the record
    int offset_delta
    int key_length                # -1: null
    int value_length              # -1: null
    int header_count


cdef struct HeaderFields:
    const unsigned char *key
    const unsigned char *value
    int key_length
    int value_length              # -1: null


cdef inline const char *read_record_start(
    const unsigned char *p, const unsigned char *end, RecordFields *fields
) noexcept nogil:
    """Read the record's end and its fields up to the key. Return NULL, or the problem."""
    cdef int length
    p = read_varint(p, end, &length)
    if p == NULL or length < 0 or length > end - p:
        return b"length goes past the end of the batch"
    if length < SMALLEST_RECORD - 1:
        return b"length is less than the fields need"
    end = p + length
    fields.end = end
    p = read_varlong(p + 1, end, &fields.timestamp_delta)  # + 1: the record's attributes, unused
    if p == NULL:
        return b"timestamp delta can't be read"
    p = read_varint(p, end, &fields.offset_delta)
    if p == NULL:
        return b"offset delta can't be read"
    p = read_varint(p, end, &fields.key_length)
    if p == NULL or fields.key_length < -1 or fields.key_length > end - p:
        return b"key length goes past the end of the record"
    fields.key = p
    return NULL


cdef inline const char *read_record_rest(RecordFields *fields) noexcept nogil:
    """Read the fields after the key, after read_record_start returned NULL. Return NULL, or the problem."""
    cdef const unsigned char *end = fields.end
    cdef const unsigned char *p = fields.key
    if fields.key_length > 0:
        p += fields.key_length
    p = read_varint(p, end, &fields.value_length)
    if p == NULL or fields.value_length < -1 or fields.value_length > end - p:
        return b"value length goes past the end of the record"
    fields.value = p
    if fields.value_length > 0:
        p += fields.value_length
    p = read_varint(p, end, &fields.header_count)
    if p == NULL or fields.header_count < 0 or fields.header_count > (end - p) // SMALLEST_HEADER:
        return b"header count does not fit the record"
    fields.headers = p
    if fields.header_count == 0 and p != end:
        return b"length leaves bytes over"
    return NULL


cdef inline const char *read_record(
    const unsigned char *p, const unsigned char *end, RecordFields *fields
) noexcept nogil:
    """Fill `fields` from the record at `p`. Return NULL, or the problem. The headers are not checked."""
    cdef const char *problem = read_record_start(p, end, fields)
    return read_record_rest(fields) if problem == NULL else problem


cdef inline const char *read_header(
    const unsigned char **cursor, const unsigned char *end, HeaderFields *fields
) noexcept nogil:
    """Fill `fields` from the header at `cursor` and move the cursor after it. Return NULL, or the problem."""
    cdef const unsigned char *p = read_varint(cursor[0], end, &fields.key_length)
    if p == NULL or fields.key_length < 0 or fields.key_length > end - p:
        return b"header key length goes past the end of the record"
    fields.key = p
    p = read_varint(p + fields.key_length, end, &fields.value_length)
    if p == NULL or fields.value_length < -1 or fields.value_length > end - p:
        return b"header value length goes past the end of the record"
    fields.value = p
    if fields.value_length > 0:
        p += fields.value_length
    cursor[0] = p
    return NULL
