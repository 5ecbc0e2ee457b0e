// The compute of a small engine: it fills memory with a pattern, looks whether a pattern is there, and keeps a GPU busy.
//
// Byte n of pattern `seed` is byte n % 8, the lowest first, of word n / 8. The host makes the same ones, in `pattern.rs`.

using u8 = unsigned char;
using u64 = unsigned long long;

// Numbers of threads, and of a thread, in the whole grid.
__device__ __forceinline__ u64 num_threads() { return static_cast<u64>(gridDim.x) * blockDim.x; }
__device__ __forceinline__ u64 thread() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ __forceinline__ u64 mix(u64 value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ull;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ull;
    return value ^ (value >> 32);
}

__device__ __forceinline__ u64 word(u64 seed, u64 nth) { return mix(seed + nth * 0x9e3779b97f4a7c15ull); }

// Bytes of the nth word of `bytes` bytes: 8, or fewer at the end.
__device__ __forceinline__ u64 length(u64 bytes, u64 nth) {
    const u64 left = bytes - nth * 8;
    return left < 8 ? left : 8;
}

// Writes `bytes` bytes of pattern `seed` to `to`, at any alignment. Grid and block are (n, 1, 1), of any size.
extern "C" __global__ void __launch_bounds__(512) kvo_engine_fill(u8 *to, u64 bytes, u64 seed) {
    const bool is_aligned = reinterpret_cast<u64>(to) % 8 == 0;
    for (u64 nth = thread(); nth * 8 < bytes; nth += num_threads()) {
        u64 value = word(seed, nth);
        const u64 count = length(bytes, nth);
        if (is_aligned && count == 8) {
            reinterpret_cast<u64 *>(to)[nth] = value;
            continue;
        }
#pragma unroll 1
        for (u64 byte = 0; byte < count; ++byte, value >>= 8) to[nth * 8 + byte] = static_cast<u8>(value);
    }
}

// Counts the bytes from `from` on that differ from pattern `seed`, and adds them to `counts`, which has a place for each
// thread of the grid. Launches that share `counts` follow one another.
extern "C" __global__ void __launch_bounds__(512)
    kvo_engine_check(const u8 *from, u64 bytes, u64 seed, u64 *counts) {
    const bool is_aligned = reinterpret_cast<u64>(from) % 8 == 0;
    u64 differ = 0;
    for (u64 nth = thread(); nth * 8 < bytes; nth += num_threads()) {
        u64 value = word(seed, nth);
        const u64 count = length(bytes, nth);
        if (is_aligned && count == 8 && reinterpret_cast<const u64 *>(from)[nth] == value) continue;
#pragma unroll 1
        for (u64 byte = 0; byte < count; ++byte, value >>= 8) {
            if (from[nth * 8 + byte] != static_cast<u8>(value)) ++differ;
        }
    }
    counts[thread()] += differ;
}

// Keeps every thread of the grid busy for `rounds` rounds of arithmetic, and touches no memory: `unused` is written only
// if all of it comes to 0, so that no compiler leaves it out.
extern "C" __global__ void __launch_bounds__(512) kvo_engine_spin(u64 rounds, u64 *unused) {
    u64 value = thread() + 1;
#pragma unroll 1
    for (u64 round = 0; round < rounds; ++round) value = mix(value + round);
    if (value == 0) *unused = value;
}
