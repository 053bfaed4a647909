# Checks and conversions of the arguments of `send`, for the accumulator and the batches.

cdef bytes bytes_of(content, str field)
cdef long long milliseconds_of(timestamp) except? -1
cdef int partition_number(partition) except -1
cdef bytes pack_headers(headers)
