// Runs the kernel's source on the CPU, thread after thread, for tests.
//
// Reads requests from standard input and answers each on standard output, until the input ends. All numbers are
// little-endian words of 64 bits:
//
//   request: entry (0: aligned, 1: any), ctas, threads, num_slices, num_bytes,
//            num_slices times {source, destination, bytes}, where addresses count from the memory's start,
//            num_bytes bytes of memory
//   answer:  num_bytes bytes of memory
//
// A load or store that is not aligned to its word, or not in the memory, ends the program with status 1.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct Position {
    unsigned x, y, z;
};

static Position threadIdx, blockIdx, blockDim, gridDim;
static std::uintptr_t memory_start, memory_end;

template <typename Word> static void check(const Word *at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (address % sizeof(Word) != 0 || address < memory_start || address + sizeof(Word) > memory_end) {
        std::fprintf(stderr, "%zu bytes at %lld\n", sizeof(Word), static_cast<long long>(address - memory_start));
        std::exit(1);
    }
}

// By bytes: the compiler need not know that words overlap.
template <typename Word> static Word load(const Word *from) {
    check(from);
    Word value;
    std::memcpy(&value, static_cast<const void *>(from), sizeof(Word));
    return value;
}

template <typename Word> static void store(Word *to, Word value) {
    check(to);
    std::memcpy(static_cast<void *>(to), &value, sizeof(Word));
}

#include "copy.cu"

static bool read_all(void *to, std::size_t bytes) { return bytes == 0 || std::fread(to, bytes, 1, stdin) == 1; }

int main() {
    u64 head[5];
    while (read_all(head, sizeof head)) {
        std::vector<Slice> slices(head[3]);
        std::vector<uint4> memory(head[4] / sizeof(uint4) + 1);
        if (!read_all(slices.data(), slices.size() * sizeof(Slice)) || !read_all(memory.data(), head[4])) return 2;
        memory_start = reinterpret_cast<std::uintptr_t>(memory.data());
        memory_end = memory_start + head[4];
        for (Slice &slice : slices) {
            slice.source += memory_start;
            slice.destination += memory_start;
        }
        const auto entry = head[0] == 0 ? kvo_copy_aligned : kvo_copy_any;
        gridDim = {static_cast<unsigned>(head[1]), 1, 1};
        blockDim = {static_cast<unsigned>(head[2]), 1, 1};
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
                entry(slices.data(), static_cast<u32>(slices.size()));
            }
        }
        if (std::fwrite(memory.data(), 1, head[4], stdout) != head[4] || std::fflush(stdout) != 0) return 2;
    }
    return 0;
}
