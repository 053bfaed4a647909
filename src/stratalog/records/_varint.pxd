# Zigzag varints and big-endian integers over raw pointers. Each reader takes the end of the readable bytes and returns
# NULL if a varint goes past it or is too long; the caller raises the error.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t strata_load64(const unsigned char *p) {
        uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline uint32_t strata_load32(const unsigned char *p) {
        uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint16_t strata_load16(const unsigned char *p) {
        uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline void strata_store64(unsigned char *p, uint64_t v) {
        v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static inline void strata_store32(unsigned char *p, uint32_t v) {
        v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static inline void strata_store16(unsigned char *p, uint16_t v) {
        v = __builtin_bswap16(v); memcpy(p, &v, 2); }
    """
    unsigned long long load64 "strata_load64"(const unsigned char *p) nogil
    unsigned int load32 "strata_load32"(const unsigned char *p) nogil
    unsigned short load16 "strata_load16"(const unsigned char *p) nogil
    void store64 "strata_store64"(unsigned char *p, unsigned long long v) nogil
    void store32 "strata_store32"(unsigned char *p, unsigned int v) nogil
    void store16 "strata_store16"(unsigned char *p, unsigned short v) nogil


cdef inline const unsigned char *read_varint(const unsigned char *p, const unsigned char *end, int *out) noexcept nogil:
    cdef unsigned int raw, byte
    cdef int shift
    if p < end and p[0] < 0x80:  # most varints of a record are one byte
        raw = p[0]
        out[0] = <int>(raw >> 1) ^ -<int>(raw & 1)
        return p + 1
    if end - p >= 2 and p[1] < 0x80:  # most other varints are two bytes
        raw = (p[0] & 0x7F) | (<unsigned int>p[1] << 7)
        out[0] = <int>(raw >> 1) ^ -<int>(raw & 1)
        return p + 2
    raw = 0
    shift = 0
    while p < end and shift <= 28:
        byte = p[0]
        p += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 28 and byte > 0x0F:
                return NULL
            out[0] = <int>(raw >> 1) ^ -<int>(raw & 1)
            return p
        shift += 7
    return NULL


cdef inline const unsigned char *read_varlong(
    const unsigned char *p, const unsigned char *end, long long *out
) noexcept nogil:
    cdef unsigned long long raw, byte
    cdef int shift
    if p < end and p[0] < 0x80:
        raw = p[0]
        out[0] = <long long>(raw >> 1) ^ -<long long>(raw & 1)
        return p + 1
    raw = 0
    shift = 0
    while p < end and shift <= 63:
        byte = p[0]
        p += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return NULL
            out[0] = <long long>(raw >> 1) ^ -<long long>(raw & 1)
            return p
        shift += 7
    return NULL


cdef inline int varint_size(long long value) noexcept nogil:
    cdef unsigned long long raw = (<unsigned long long>value << 1) ^ <unsigned long long>(value >> 63)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline unsigned char *write_varint(unsigned char *p, long long value) noexcept nogil:
    # This serves varints and varlongs: the zigzag code of an int is the same in 32 and 64 bits.
    cdef unsigned long long raw = (<unsigned long long>value << 1) ^ <unsigned long long>(value >> 63)
    while raw >= 0x80:
        p[0] = <unsigned char>((raw & 0x7F) | 0x80)
        p += 1
        raw >>= 7
    p[0] = <unsigned char>raw
    return p + 1
