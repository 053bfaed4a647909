# The partition of each row of a table: the one that the row names, else the one of its key, else any. One pass over the
# keys without the GIL, and a counting sort, which puts rows of a partition next to each other in their order.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.limits cimport INT_MAX
from libc.stdlib cimport calloc, free

from stratalog.client._partitioner cimport partition_of_key
from stratalog.records._column_encoder cimport BinaryColumn
from stratalog.records._column_memory cimport BinaryIn, take

from stratalog.errors import InvalidRecordError


def sort_rows(BinaryColumn keys, named, Py_ssize_t rows, int partitions):
    """Sort row numbers by partition. Return them as i32, and where each partition's rows begin in them.

    Partitions come in order, then the rows that may go to any partition. `keys` may be None. `named`
    is a buffer of i32 with the partition of each row, -1 if the row names none, or None if no row does.
    """
    cdef Py_buffer view
    cdef const int *names = NULL
    cdef BinaryIn column
    cdef bint has_keys = keys is not None and keys.column.offsets != NULL
    cdef int *chosen
    cdef int *ends
    cdef int *numbers
    cdef Py_ssize_t wrong
    cdef int partition
    if partitions < 1 or rows > INT_MAX:
        raise ValueError(f"{rows} rows can't be distributed over {partitions} partitions")
    if keys is not None:
        if keys.column.rows != rows:
            raise ValueError(f"there are {keys.column.rows} keys for {rows} rows")
        column = keys.column
    order = PyByteArray_FromStringAndSize(NULL, rows * sizeof(int))
    numbers = <int *> PyByteArray_AS_STRING(order)
    chosen = <int *> calloc(rows + 1, sizeof(int))
    ends = <int *> calloc(partitions + 2, sizeof(int))
    view.buf = NULL
    try:
        if chosen == NULL or ends == NULL:
            raise MemoryError
        if named is not None:
            PyObject_GetBuffer(named, &view, PyBUF_SIMPLE)
            if view.len < rows * <Py_ssize_t> sizeof(int):
                raise ValueError(f"the partition column has {view.len} bytes, too few for {rows} rows")
            names = <const int *> view.buf
        with nogil:
            wrong = _choose(&column if has_keys else NULL, names, rows, partitions, chosen, ends)
            if wrong < 0:
                _sort(numbers, rows, partitions, chosen, ends)
        if wrong >= 0:
            if names != NULL and names[wrong] != -1:
                raise InvalidRecordError(
                    f"row {wrong}: partition is {names[wrong]}; the topic has partitions 0 to {partitions - 1}"
                )
            raise InvalidRecordError(f"row {wrong}: its key ends after the end of the column")
        # After the sort, each entry is the end of a partition's rows.
        return order, [0] + [ends[partition] for partition in range(partitions + 1)]
    finally:
        if view.buf != NULL:
            PyBuffer_Release(&view)
        free(chosen)
        free(ends)


cdef Py_ssize_t _choose(
    BinaryIn *keys, const int *names, Py_ssize_t rows, int partitions, int *chosen, int *counts
) noexcept nogil:
    """Fill `chosen` and count rows per partition. The number of partitions means "any". Return -1 or an invalid row."""
    cdef const unsigned char *key = NULL
    cdef Py_ssize_t row
    cdef int partition, length
    for row in range(rows):
        partition = -1 if names == NULL else names[row]
        if partition < -1 or partition >= partitions:
            return row
        if partition == -1:
            length = -1 if keys == NULL else take(keys, row, &key)
            if length == -2:
                return row
            partition = partitions if length == -1 else partition_of_key(key, length, partitions)
        chosen[row] = partition
        counts[partition] += 1
    return -1


cdef void _sort(int *order, Py_ssize_t rows, int partitions, const int *chosen, int *positions) noexcept nogil:
    cdef Py_ssize_t row
    cdef int partition, count, before = 0
    for partition in range(partitions + 1):
        count = positions[partition]
        positions[partition] = before
        before += count
    for row in range(rows):
        order[positions[chosen[row]]] = <int> row
        positions[chosen[row]] += 1
