"""Looking at a log's files from outside. Nothing here writes, locks, repairs or prints.

    dump          the contents of any of Kafka's files, row by row
    lookup        an offset's or a timestamp's look-up, with every step
    page_cache    which parts of a file are in RAM
    verify        everything that can be wrong with a partition or a data directory

All of it works beside a process that is writing: a batch that is not whole yet and the zeros of a preallocated index
are told from damage. Any bytes may be in the files: what is read at once has a bound, whatever a length field claims.
"""
