"""Writes the responses of which a broker sends tens of thousands per second: Produce, versions 0 to 13, and Fetch,
versions 4 to 18. protocol/produce.py and protocol/fetch.py have their layouts and types."""

from stratalog.protocol._wire_fields cimport Output
from stratalog.protocol.hot_versions cimport (
    DIVERGING_EPOCH_SIZE, DIVERGING_EPOCH_TAG, ENDPOINTS_TAG, FETCH_FLEXIBLE, FETCH_LEADER_TAG, FETCH_WITH_LEADERS,
    FETCH_WITH_SESSIONS, LEADER_SIZE, PRODUCE_FLEXIBLE, PRODUCE_LEADER_TAG, PRODUCE_WITH_LEADERS,
)

cdef enum:
    _LONGEST_MESSAGE = 1000  # characters


cdef Output _output(bint flexible):
    cdef Output out = Output.__new__(Output)
    out.flexible = flexible
    return out


cdef int write_topic(Output out, topic) except -1:
    """Write a topic's name, or the bytes of its id."""
    if isinstance(topic, bytes):
        return out.raw(<const char *> <bytes> topic, len(<bytes> topic))
    return out.string((<str> topic).encode())


cdef int write_message(Output out, text) except -1:
    """Write a nullable string, cut to the limit for messages in responses."""
    return out.string(None if text is None else (<str> text)[:_LONGEST_MESSAGE].encode())


cdef int write_leader(Output out, int tag, leader, dict leaders) except -1:
    """Write a partition's current leader as a tagged field, and note its endpoint. -1 stands for no leader."""
    out.byte(<unsigned char> tag)
    out.byte(LEADER_SIZE + 1)
    out.int32(leader.node_id)
    out.int32(leader.leader_epoch)
    if leader.node_id >= 0:
        leaders[leader.node_id] = leader
    return out.byte(0)


cdef int write_endpoints(Output out, dict leaders) except -1:
    """Write the last tagged fields of a response: the endpoints of leaders that it names, if there are any."""
    if not leaders:
        return out.tags()
    cdef Output content = _output(True)
    content.count(len(leaders))
    for leader in leaders.values():
        content.int32(leader.node_id)
        content.string((<str> leader.host).encode())
        content.int32(leader.port)
        content.string(None if leader.rack is None else (<str> leader.rack).encode())
        content.tags()
    cdef bytes encoded = content.take()
    out.byte(1)
    out.byte(ENDPOINTS_TAG)
    out.varint(len(encoded))
    return out.raw(<const char *> encoded, len(encoded))


def encode_produce_response(int version, topics):
    cdef dict leaders = {}
    cdef Output out = _output(version >= PRODUCE_FLEXIBLE)
    out.count(len(topics))
    for topic, partitions in topics:
        write_topic(out, topic)
        out.count(len(partitions))
        for partition in partitions:
            write_produced(out, version, partition, leaders)
        out.tags()
    if version >= 1:
        out.int32(0)  # never throttled
    write_endpoints(out, leaders)
    return out.take()


cdef int write_produced(Output out, int version, partition, dict leaders) except -1:
    index, error_code, base_offset, log_append_time, log_start_offset, error_message, record_errors, leader = partition
    out.int32(index)
    out.int16(error_code)
    out.int64(base_offset)
    if version >= 2:
        out.int64(log_append_time)
    if version >= 5:
        out.int64(log_start_offset)
    if version < 8:
        return 0
    out.count(len(record_errors))
    for index, text in record_errors:
        out.int32(index)
        write_message(out, text)
        out.tags()
    write_message(out, error_message)
    if leader is None or version < PRODUCE_WITH_LEADERS:
        out.tags()
        return 0
    out.byte(1)
    return write_leader(out, PRODUCE_LEADER_TAG, leader, leaders)


def encode_fetch_response(int version, int error_code, int session_id, topics):
    cdef Output out = _output(version >= FETCH_FLEXIBLE)
    cdef Py_ssize_t size = 0
    cdef list pieces = []
    cdef dict leaders = {}
    out.int32(0)  # never throttled
    if version >= FETCH_WITH_SESSIONS:
        out.int16(error_code)
        out.int32(session_id)
    out.count(len(topics))
    for topic, partitions in topics:
        write_topic(out, topic)
        out.count(len(partitions))
        for partition in partitions:
            index, code, high_watermark, stable, start, aborted, records, diverging, leader, preferred = partition
            out.int32(index)
            out.int16(code)
            out.int64(high_watermark)
            out.int64(stable)
            if version >= 5:
                out.int64(start)
            write_aborted(out, aborted)
            if version >= 11:
                out.int32(preferred)
            length = 0 if records is None else len(records)
            out.count(length)
            if length:
                size += out.size + length
                pieces.append(out.take())
                pieces.append(records)
            if out.flexible:
                write_partition_tags(out, diverging, leader if version >= FETCH_WITH_LEADERS else None, leaders)
        out.tags()
    write_endpoints(out, leaders)
    size += out.size
    pieces.append(out.take())
    return pieces, size


cdef int write_aborted(Output out, aborted) except -1:
    if aborted is None:
        return out.count(-1)
    out.count(len(aborted))
    for producer_id, first_offset in aborted:
        out.int64(producer_id)
        out.int64(first_offset)
        out.tags()
    return 0


cdef int write_partition_tags(Output out, diverging, leader, dict leaders) except -1:
    if diverging is None and leader is None:
        return out.byte(0)
    out.byte((diverging is not None) + (leader is not None))
    if diverging is not None:
        epoch, end_offset = diverging
        out.byte(DIVERGING_EPOCH_TAG)
        out.byte(DIVERGING_EPOCH_SIZE + 1)
        out.int32(epoch)
        out.int64(end_offset)
        out.byte(0)
    if leader is not None:
        write_leader(out, FETCH_LEADER_TAG, leader, leaders)
    return 0
