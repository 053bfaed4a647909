# The arguments of `send`: each is checked, and converted to what a batch stores. Values and keys that are bytes already
# do not come here.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from stratalog.records._varint cimport write_varint


cdef bytes bytes_of(content, str field):
    """Return a bytes-like object as bytes. `field` names it in the error."""
    if isinstance(content, str) or isinstance(content, int):
        raise _not_bytes(content, field)
    try:
        return bytes(memoryview(content))
    except TypeError:
        raise _not_bytes(content, field) from None


cdef _not_bytes(content, str field):
    return TypeError(
        f"{field} is {type(content).__name__}, not bytes or None: encode it, or set the producer's {field}_serializer"
    )


cdef long long milliseconds_of(timestamp) except? -1:
    if not isinstance(timestamp, int):
        raise TypeError(
            f"timestamp is {timestamp!r}; it must be whole milliseconds since 1970, like int(when.timestamp() * 1000)"
        )
    if timestamp < 0:
        raise ValueError(f"timestamp is {timestamp}; it must not be negative")
    return timestamp


cdef int partition_number(partition) except -1:
    if not isinstance(partition, int):
        raise TypeError(f"partition is {partition!r}; it must be a number or None")
    if partition < 0 or partition > 0x7FFFFFFF:
        raise ValueError(f"partition is {partition}; it must not be negative, and fit 32 bits")
    return partition


cdef bytes pack_headers(headers):
    """Encode headers as a record stores them, with their number first. Return None if there are no headers."""
    cdef Py_ssize_t size = 0
    cdef list fields = []
    cdef bytes key, packed
    cdef unsigned char *p
    if headers is None:
        return None
    pairs = list(headers.items() if isinstance(headers, dict) else headers)
    if not pairs:
        return None
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"header is {pair!r}; it must be a pair of str and bytes")
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"header key is {type(name).__name__}, not str")
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"value of header {name!r} is {type(value).__name__}, not bytes or None")
        key = (<str> name).encode()
        fields.append(key)
        fields.append(value)
        size += 10 + len(key) + (0 if value is None else len(value))
    packed = PyBytes_FromStringAndSize(NULL, size + 5)
    p = <unsigned char *> PyBytes_AS_STRING(packed)
    p = write_varint(p, len(pairs))
    for field in fields:
        if field is None:
            p = write_varint(p, -1)
            continue
        p = write_varint(p, len(<bytes> field))
        memcpy(p, PyBytes_AS_STRING(field), len(<bytes> field))
        p += len(<bytes> field)
    return packed[: p - <unsigned char *> PyBytes_AS_STRING(packed)]
