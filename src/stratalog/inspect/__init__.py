"""Read-only views of a log's files. Nothing here writes, locks, recovers or prints.

    dump          the contents of any of Kafka's files, row by row
    lookup        the lookup of an offset or a timestamp, with every step
    page_cache    the parts of a file that are in RAM
    verify        all problems of a partition or a data directory

All of it works while another process writes: an incomplete batch and the zeros of a preallocated index are not reported
as damage. The files may have any bytes: the memory for one read has a limit, whatever a length field says.
"""
