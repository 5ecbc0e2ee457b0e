// Gather and scatter between device memory and mapped host memory.
//
//   slices[0]                      slices[1]            ...      slices[num_slices - 1]
//   {source, destination, bytes}   {...}
//   one warp                       one warp                      one warp
//
// The host cuts every fragment of a plan into slices of a few KiB. So one large fragment still uses every warp of every
// CTA, and a warp finds its work without a search, a prefix sum or a division. The grid is small (4 CTAs of 512
// threads) and walks the slices: CTAs are not preempted, and the other multiprocessors are for the engine's kernels.
//
// What the caller guarantees:
// - The device may read each source and write each destination for all of its bytes, at any alignment: device memory,
//   or registered host memory by its device address. Lengths are below 2^63.
// - No destination shares a byte with a source or with another destination of the launch. Sources may overlap.
// - Nobody writes the sources or the list from the launch until its end.
//
// `bytes` may be 0. Nothing outside the sources is read, and nothing outside the destinations is written.

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

// One piece of one fragment: 24 bytes, aligned to 8. Addresses as the device sees them; length in bytes.
struct Slice {
    u64 source;
    u64 destination;
    u64 bytes;
};

enum : u32 {
    WARP = 32,
    // Loads that a lane has in flight before its first store. 8 of 16 bytes are 4 KiB a warp, 256 KiB a grid of
    // 4 x 512; a PCIe 5.0 x16 link needs about 80 KiB on the way at a round trip of 1.3 us.
    BATCH = 8,
};

#ifdef __CUDACC_RTC__
// Read once: not kept in L1. These are no `ld.global.nc`: ptxas moves such loads down past stores to save registers,
// which halves the bytes in flight. Loads that might alias a store stay before it.
__device__ __forceinline__ uint4 load(const uint4 *from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}
__device__ __forceinline__ u64 load(const u64 *from) {
    u64 value;
    asm volatile("ld.global.L1::no_allocate.u64 %0, [%1];" : "=l"(value) : "l"(from));
    return value;
}
__device__ __forceinline__ u8 load(const u8 *from) {
    u32 value;
    asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=r"(value) : "l"(from));
    return static_cast<u8>(value);
}
// Written once: the first to leave L2, so that a copy does not push out what compute has there.
template <typename Word> __device__ __forceinline__ void store(Word *to, Word value) { __stcs(to, value); }
#endif

// Copies `count` words from `source` to `destination`, both aligned to the word, with all lanes of a warp. Lane n has
// words n, n + 32, n + 64, ..., so that neighbouring lanes touch neighbouring words.
template <typename Word>
__device__ __forceinline__ void copy_words(const Word *source, Word *destination, u64 count, u32 lane) {
    source += lane;
    destination += lane;
    u64 left = (count + WARP - 1 - lane) / WARP;
#pragma unroll 1
    while (left > 0) {
        const u32 now = left < BATCH ? static_cast<u32>(left) : u32{BATCH};
        Word held[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            if (i < now) held[i] = load(source + i * WARP);
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            if (i < now) store(destination + i * WARP, held[i]);
        }
        source += BATCH * WARP;
        destination += BATCH * WARP;
        left -= now;
    }
}

// Copies `bytes` bytes by words, where both addresses have the same remainder by the word. What lies before the first
// whole word and behind the last one is fewer than 16 bytes each: lanes 0 to 15 have the head, 16 to 31 the tail, a byte
// each. Their bytes are loaded before the words and stored after them.
template <typename Word>
__device__ __forceinline__ void copy_by(u64 source, u64 destination, u64 bytes, u32 lane) {
    const u64 to_boundary = (0 - destination) % sizeof(Word);
    const u64 head = to_boundary < bytes ? to_boundary : bytes;
    const u64 count = (bytes - head) / sizeof(Word);
    const u64 tail = (bytes - head) % sizeof(Word);

    const bool in_head = lane < WARP / 2;
    const u32 nth = lane % (WARP / 2);
    const u64 edge = in_head ? nth : bytes - tail + nth;
    const bool has_edge = nth < (in_head ? head : tail);
    u8 at_edge = 0;
    if (has_edge) at_edge = load(reinterpret_cast<const u8 *>(source + edge));
    copy_words(reinterpret_cast<const Word *>(source + head), reinterpret_cast<Word *>(destination + head), count, lane);
    if (has_edge) store(reinterpret_cast<u8 *>(destination + edge), at_edge);
}

// Copies a slice at any alignment, by the widest words that both of its addresses allow: 16, 8 or 1 bytes.
__device__ __forceinline__ void copy_any(const Slice &slice, u32 lane) {
    const u64 apart = slice.source ^ slice.destination;
    if (apart % sizeof(uint4) == 0) {
        copy_by<uint4>(slice.source, slice.destination, slice.bytes, lane);
    } else if (apart % sizeof(u64) == 0) {
        copy_by<u64>(slice.source, slice.destination, slice.bytes, lane);
    } else {
        copy_words(reinterpret_cast<const u8 *>(slice.source), reinterpret_cast<u8 *>(slice.destination), slice.bytes,
                   lane);
    }
}

// Copies a slice of which both addresses and the length are multiples of 16.
__device__ __forceinline__ void copy_aligned(const Slice &slice, u32 lane) {
    copy_words(reinterpret_cast<const uint4 *>(slice.source), reinterpret_cast<uint4 *>(slice.destination),
               slice.bytes / sizeof(uint4), lane);
}

// Gives warp w of CTA b the slices w * ctas + b and every (ctas * warps)th after it: a few slices spread over all CTAs.
// The next slice is fetched before this one is copied, as the list may be a round trip over the link away.
template <void (*COPY)(const Slice &, u32)>
__device__ __forceinline__ void walk(const Slice *__restrict__ slices, u32 num_slices) {
    const u32 lane = threadIdx.x % WARP;
    const u32 step = blockDim.x / WARP * gridDim.x;
    u64 nth = static_cast<u64>(threadIdx.x / WARP) * gridDim.x + blockIdx.x;
    if (nth >= num_slices) return;
    Slice next = slices[nth];
#pragma unroll 1
    while (nth < num_slices) {
        const Slice slice = next;
        nth += step;
        if (nth < num_slices) next = slices[nth];
        COPY(slice, lane);
    }
}

// The entries. Both copy `num_slices` slices; `slices` is aligned to 8, in device or mapped host memory.
//
// Grid (ctas, 1, 1), block (threads, 1, 1), threads a multiple of 32 and at most 512. Every such shape copies everything.
// No shared memory, no barrier, no shuffle: warps and lanes do not wait for each other.

// For slices at any alignment.
extern "C" __global__ void __launch_bounds__(512) kvo_copy_any(const Slice *__restrict__ slices, u32 num_slices) {
    walk<copy_any>(slices, num_slices);
}

// For slices of which all addresses and lengths are multiples of 16. Its loop is the same, but it needs two thirds of the
// registers, which leaves more of a multiprocessor to whatever else runs on it.
extern "C" __global__ void __launch_bounds__(512) kvo_copy_aligned(const Slice *__restrict__ slices, u32 num_slices) {
    walk<copy_aligned>(slices, num_slices);
}
