# The versions in which the layouts of Produce and Fetch change, for the kernels. tests/protocol/test_hot_versions.py
# compares them with api_keys.py and with produce.py and fetch.py.

cdef enum:
    PRODUCE_WITH_ZSTD = 7
    PRODUCE_FLEXIBLE = 9
    PRODUCE_WITH_LEADERS = 10
    PRODUCE_BY_ID = 13
    FETCH_WITH_SESSIONS = 7
    FETCH_FLEXIBLE = 12
    FETCH_BY_ID = 13
    FETCH_WITH_LEADERS = 16

    DIVERGING_EPOCH_TAG = 0    # in a partition of a fetch response
    DIVERGING_EPOCH_SIZE = 12  # an int32 and an int64
    FETCH_LEADER_TAG = 1       # in the same place
    PRODUCE_LEADER_TAG = 0     # in a partition of a produce response
    LEADER_SIZE = 8            # two int32
    ENDPOINTS_TAG = 0          # at the end of both responses
