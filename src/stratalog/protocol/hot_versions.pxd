# Where the layouts of Produce and Fetch change from version to version, for the kernels. tests/protocol/test_hot_versions.py
# compares them with api_keys.py and with the Python modules of these two requests.

cdef enum:
    PRODUCE_WITH_ZSTD = 7
    PRODUCE_FLEXIBLE = 9
    PRODUCE_BY_ID = 13
    FETCH_WITH_SESSIONS = 7
    FETCH_FLEXIBLE = 12
    FETCH_BY_ID = 13

    DIVERGING_EPOCH_TAG = 0    # of a partition in a fetch response
    DIVERGING_EPOCH_SIZE = 12  # an int32 and an int64
