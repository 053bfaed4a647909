/* A keyed 128-bit hash of a record's key: SipHash with one round per word and three at the end (SipHash-1-3). Compaction
   treats two keys with the same hash as one key and would lose the older value. The seed is secret, so no client can
   create such keys on purpose; by chance it takes 2^64 keys. */
#ifndef STRATALOG_SIPHASH128_H
#define STRATALOG_SIPHASH128_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint64_t low, high; } strata_hash128;

#define STRATA_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define STRATA_ROUND \
    v0 += v1; v1 = STRATA_ROTL(v1, 13); v1 ^= v0; v0 = STRATA_ROTL(v0, 32); \
    v2 += v3; v3 = STRATA_ROTL(v3, 16); v3 ^= v2; \
    v0 += v3; v3 = STRATA_ROTL(v3, 21); v3 ^= v0; \
    v2 += v1; v1 = STRATA_ROTL(v1, 17); v1 ^= v2; v2 = STRATA_ROTL(v2, 32);

static inline strata_hash128 strata_siphash128(const unsigned char *in, size_t length, uint64_t k0, uint64_t k1) {
    uint64_t v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL ^ 0xee;
    uint64_t v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
    uint64_t word = 0;
    size_t left = length;
    strata_hash128 out;
    for (; left >= 8; left -= 8, in += 8) {
        memcpy(&word, in, 8);
        v3 ^= word;
        STRATA_ROUND
        v0 ^= word;
    }
    word = (uint64_t)length << 56;
    for (size_t i = 0; i < left; i++) word |= (uint64_t)in[i] << (8 * i);
    v3 ^= word;
    STRATA_ROUND
    v0 ^= word;
    v2 ^= 0xee;
    STRATA_ROUND STRATA_ROUND STRATA_ROUND
    out.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    STRATA_ROUND STRATA_ROUND STRATA_ROUND
    out.high = v0 ^ v1 ^ v2 ^ v3;
    return out;
}

static inline uint64_t strata_fold(uint64_t x) {
    unsigned __int128 product = (unsigned __int128)x * 0x9E3779B97F4A7C15ULL;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The identity of a key in 128 bits. A key of up to 15 bytes and its length are permuted with three rounds of a Feistel
   network: no two keys get the same identity, and their slots can't be predicted without the seed. A longer key is hashed.
   */
static inline strata_hash128 strata_identity(const unsigned char *in, size_t length, uint64_t k0, uint64_t k1) {
    uint64_t a = 0, b = 0;
    uint32_t low, high;
    strata_hash128 out;
    if (length > 15) return strata_siphash128(in, length, k0, k1);
    if (length >= 8) {
        memcpy(&a, in, 8);
        if (length > 8) {
            memcpy(&b, in + length - 8, 8);
            b >>= 8 * (16 - length);
        }
    } else if (length >= 4) {
        memcpy(&low, in, 4);
        memcpy(&high, in + length - 4, 4);
        a = low | (uint64_t)high << (8 * (length - 4));
    } else {
        for (size_t i = 0; i < length; i++) a |= (uint64_t)in[i] << (8 * i);
    }
    b |= (uint64_t)length << 56;
    a ^= strata_fold(b ^ k0);
    b ^= strata_fold(a ^ k1);
    a ^= strata_fold(b ^ (k0 + k1));
    out.low = a;
    out.high = b;
    return out;
}

/* The slot of a hash: as evenly distributed as a remainder, without the division. */
static inline uint64_t strata_slot_of(uint64_t hash, uint64_t slots) {
    return (uint64_t)(((unsigned __int128)hash * slots) >> 64);
}

#endif
