"""Whether bytes have the shape of a request: a walk over lengths and counts that makes nothing of them.

Before a stranger's request becomes objects, every length and count in it is checked against the bytes that are left, and
its arrays against a bound on their elements. Without that a few bytes can make a parser ask for 34 GB. Tagged fields,
which a newer client may send and who does not know them has to step over (KIP-482), are left out on the way.

A shape is an array of numbers, made by shapes.py: an operation, its argument, and for arrays and nullable structures the
operations of what they hold.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from stratalog.errors import MalformedRequestError

cpdef enum Operation:
    FIXED = 0  # argument: how many bytes
    STRING = 1  # 16 bits of length; argument: 1 where null is allowed
    BYTES = 2  # 32 bits
    COMPACT = 3  # a varint, one more than the length
    ARRAY = 4  # argument: as above; next: how many numbers describe an element
    COMPACT_ARRAY = 5
    NULLABLE = 6  # a byte, negative for null; argument: how many numbers describe what follows
    TAGS = 7  # tagged fields, none of which is known

cdef enum Fault:
    _FINE = 0
    _TOO_SHORT = 1
    _NULL = 2
    _VARINT = 3
    _TOO_MANY = 4

cdef struct Walk:
    const uint8_t* data
    int64_t position
    int64_t end
    int64_t elements  # that there may still be
    bint tagged  # whether there were tagged fields
    uint8_t* out  # where all but tagged fields is copied to, if anywhere
    int64_t out_size
    int64_t copied  # up to where


cdef inline Fault take(Walk* walk, int64_t count) noexcept nogil:
    if count < 0 or count > walk.end - walk.position:
        return _TOO_SHORT
    walk.position += count
    return _FINE


cdef Fault read_varint(Walk* walk, int64_t* value) noexcept nogil:
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while True:
        if walk.position >= walk.end:
            return _TOO_SHORT
        byte = walk.data[walk.position]
        walk.position += 1
        value[0] |= <int64_t> (byte & 0x7F) << shift
        if not byte & 0x80:
            if value[0] >> 32:
                return _VARINT
            return _FINE
        shift += 7
        if shift > 28:
            return _VARINT


cdef Fault read_length(Walk* walk, int32_t operation, int64_t* length) noexcept nogil:
    """-1 is null."""
    cdef Fault fault
    cdef const uint8_t* at = walk.data + walk.position
    if operation == COMPACT or operation == COMPACT_ARRAY:
        fault = read_varint(walk, length)
        length[0] -= 1
        return fault
    if operation == STRING:
        fault = take(walk, 2)
        if fault == _FINE:
            length[0] = <int16_t> ((at[0] << 8) | at[1])
        return fault
    fault = take(walk, 4)
    if fault == _FINE:
        length[0] = <int32_t> ((<uint32_t> at[0] << 24) | (at[1] << 16) | (at[2] << 8) | at[3])
    return fault


cdef Fault skip_tags(Walk* walk) noexcept nogil:
    cdef int64_t count, number
    cdef int64_t start = walk.position
    cdef Fault fault = read_varint(walk, &count)
    if fault != _FINE:
        return fault
    if count:
        walk.tagged = True
        walk.elements -= count
        if walk.elements < 0:
            return _TOO_MANY
    while fault == _FINE and count > 0:
        count -= 1
        fault = read_varint(walk, &number)
        if fault == _FINE:
            fault = read_varint(walk, &number)
        if fault == _FINE:
            fault = take(walk, number)
    if fault == _FINE and walk.out != NULL:
        copy_up_to(walk, start)
        walk.out[walk.out_size] = 0
        walk.out_size += 1
        walk.copied = walk.position
    return fault


cdef void copy_up_to(Walk* walk, int64_t end) noexcept nogil:
    memcpy(walk.out + walk.out_size, walk.data + walk.copied, end - walk.copied)
    walk.out_size += end - walk.copied


cdef Fault walk_array(Walk* walk, const int32_t* shape, int64_t count) noexcept nogil:
    """`shape` is that of the array; of its elements if there is no null."""
    cdef Fault fault
    if count > walk.end - walk.position:  # an element has a byte at least
        return _TOO_SHORT
    walk.elements -= count
    if walk.elements < 0:
        return _TOO_MANY
    while count > 0:
        count -= 1
        fault = follow(walk, shape + 3, shape[2])
        if fault != _FINE:
            return fault
    return _FINE


cdef Fault follow(Walk* walk, const int32_t* shape, int32_t size) noexcept nogil:
    cdef int32_t at = 0
    cdef int32_t operation, argument
    cdef int64_t length
    cdef Fault fault
    while at < size:
        operation = shape[at]
        argument = shape[at + 1]
        if operation == FIXED:
            fault = take(walk, argument)
        elif operation == TAGS:
            fault = skip_tags(walk)
        elif operation == NULLABLE:
            fault = take(walk, 1)
            if fault == _FINE and <signed char> walk.data[walk.position - 1] >= 0:
                fault = follow(walk, shape + at + 2, argument)
            at += argument
        else:
            fault = read_length(walk, operation, &length)
            if fault == _FINE and length < 0:
                if length != -1 or not argument:
                    fault = _NULL
            elif fault == _FINE and operation < ARRAY:
                fault = take(walk, length)
            elif fault == _FINE:
                fault = walk_array(walk, shape + at, length)
            if operation >= ARRAY:
                at += 1 + shape[at + 2]
        if fault != _FINE:
            return fault
        at += 2
    return _FINE


def check_shape(const uint8_t[::1] frame not None, const int32_t[::1] shape not None, Py_ssize_t most_elements):
    """The frame must begin with this shape, with so many elements of arrays (and tagged fields) at most, in all.

    What follows is left alone, as Kafka does it: librdkafka's Metadata for all topics ends in three bytes too many.
    None, or where there are tagged fields, the same request without them.
    """
    cdef Walk walk = start_walk(frame, most_elements)
    cdef Fault fault = follow(&walk, &shape[0], <int32_t> shape.shape[0])
    if fault != _FINE:
        raise MalformedRequestError(explain(&walk, fault, most_elements))
    if not walk.tagged:
        return None
    stripped = PyBytes_FromStringAndSize(NULL, walk.end)
    walk = start_walk(frame, most_elements)
    walk.out = <uint8_t*> PyBytes_AS_STRING(stripped)
    follow(&walk, &shape[0], <int32_t> shape.shape[0])
    copy_up_to(&walk, walk.end)
    return memoryview(stripped)[:walk.out_size]


cdef Walk start_walk(const uint8_t[::1] frame, Py_ssize_t most_elements):
    cdef Walk walk
    walk.data = &frame[0] if frame.shape[0] else NULL
    walk.position = walk.out_size = walk.copied = 0
    walk.end = frame.shape[0]
    walk.elements = most_elements
    walk.tagged = False
    walk.out = NULL
    return walk


cdef str explain(Walk* walk, Fault fault, Py_ssize_t most_elements):
    where = f"at position {walk.position} of {walk.end}"
    if fault == _TOO_SHORT:
        return f"more bytes or elements are announced {where} than are left"
    if fault == _NULL:
        return f"a length {where} is negative"
    if fault == _VARINT:
        return f"a length {where} does not fit 32 bits"
    return f"more than {most_elements} elements in arrays, counted up to the one {where}"
