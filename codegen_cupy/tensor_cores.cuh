// Device functions around the tensor cores: what a warp does together, and copies that run behind it.
// Pieces as in helpers.cuh.  Lane l of a warp stands at group = l / 4, place = l % 4.  Without tensor cores (the CPU
// emulator) the lanes show one another their registers (tt_show) and each computes its own part in plain arithmetic.

//: pack_pair
// Two floats rounded to two neighbours of a half type, the first in the low bits.
#ifndef TT_EMULATE
__device__ __forceinline__ unsigned pack_pair(float low, float high, bf16) {
    unsigned u; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low)); return u;
}
__device__ __forceinline__ unsigned pack_pair(float low, float high, f16) {
    unsigned u; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low)); return u;
}
#else
template <class E> __device__ __forceinline__ unsigned pack_pair(float low, float high, E) {
    if constexpr (std::is_same_v<E, bf16>) return tt::narrow_bf16(low) | (unsigned)tt::narrow_bf16(high) << 16;
    else return tt::narrow(low) | (unsigned)tt::narrow(high) << 16;  // E is f16
}
#endif

//: mma_16x8x16 mma_rows
// c += a b for a 16x16 (row by row), b 16x8 (column by column), c 16x8 in float32.  This lane holds
// a: rows group and group + 8 at columns 2 place and 2 place + 8;  b: rows 2 place and 2 place + 8 of column group;
// c: rows group and group + 8 at columns 2 place.  Each number of a and b is two neighbours.
#ifndef TT_EMULATE
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
template <class E> TT_PLAIN float number_of(uint64_t word, int which, E) {
    unsigned short bits = (unsigned short)(word >> 16 * which);
    return std::is_same_v<E, bf16> ? __uint_as_float((unsigned)bits << 16) : tt::widen(bits);
}
template <class E> TT_PLAIN void mma_rows(float (&rows)[2][16], const unsigned (&a)[4], E e) {  // group and group + 8 of a
    for (int half = 0; half < 2; ++half) {  // columns 0..7 of a, then 8..15
        const uint64_t* seen = tt_show(a[2 * half] | (uint64_t)a[2 * half + 1] << 32);
        for (int k = 0; k < 8; ++k)
            for (int r = 0; r < 2; ++r) rows[r][8 * half + k] = number_of(seen[tt_lane() / 4 * 4 + k / 2], 2 * r + k % 2, e);
    }
}
template <class E> TT_PLAIN void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, E e) {
    unsigned place = tt_lane() % 4;
    float rows[2][16], columns[2][16];
    mma_rows(rows, a, e);
    const uint64_t* seen = tt_show(b0 | (uint64_t)b1 << 32);
    for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 2; ++n) columns[n][k] = number_of(seen[4 * (2 * place + n) + k % 8 / 2], k / 8 * 2 + k % 2, e);
    for (int r = 0; r < 2; ++r)
        for (int n = 0; n < 2; ++n)
            for (int k = 0; k < 16; ++k) c[2 * r + n] += rows[r][k] * columns[n][k];
}
#endif

//: load_matrices
// Four 8x8 matrices of 2-byte elements from shared memory.  Lane l gives the address of row l % 8 of matrix l / 8, and
// gets of matrix i, in to[i], row group at columns 2 place; turned: of the matrix's transpose.
#ifndef TT_EMULATE
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices_turned(unsigned (&to)[4], const void* row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
#else
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
    unsigned lane = tt_lane();
    uint64_t rows[32];
    std::memcpy(rows, tt_show((uint64_t)row), sizeof rows);
    for (int i = 0; i < 4; ++i) to[i] = ((const unsigned*)rows[8 * i + lane / 4])[lane % 4];
}
__device__ __forceinline__ void load_matrices_turned(unsigned (&to)[4], const void* row) {
    unsigned lane = tt_lane(), group = lane / 4, place = lane % 4;
    uint64_t rows[32];
    std::memcpy(rows, tt_show((uint64_t)row), sizeof rows);
    for (int i = 0; i < 4; ++i)
        to[i] = ((const unsigned short*)rows[8 * i + 2 * place])[group] |
                (unsigned)((const unsigned short*)rows[8 * i + 2 * place + 1])[group] << 16;
}
#endif

//: SHARED_POOL
// A kernel's shared memory as one block, whose size the launch gives.
#ifndef TT_EMULATE
#define SHARED_POOL(name, bytes) extern __shared__ __align__(1024) unsigned char name[]
#else
#define SHARED_POOL(name, bytes) alignas(1024) __shared__ unsigned char name[bytes]
#endif

//: copy_16 copy_4 copies_end_group copies_wait
// 16 (or 4) bytes from global to shared memory, without passing through registers; zeros where `there` is false (`from` must
// point to memory all the same).  Copies form groups; copies_wait<N> waits until all but the last N groups of this
// thread have landed; a barrier then shows them to the other threads.
#ifndef TT_EMULATE
__device__ __forceinline__ void copy_16(void* to, const void* from, bool there) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_4(void* to, const void* from, bool there) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#else
__device__ __forceinline__ void copy_16(void* to, const void* from, bool there) {
    for (int i = 0; i < 2; ++i) ((uint64_t*)to)[i] = there ? ((const uint64_t*)from)[i] : 0;
}
__device__ __forceinline__ void copy_4(void* to, const void* from, bool there) { *(unsigned*)to = there ? *(const unsigned*)from : 0; }
__device__ __forceinline__ void copies_end_group() {}
template <int N> __device__ __forceinline__ void copies_wait() {}
#endif

//: add_4
// Add four neighbours to global memory; others may do so at the same time.
__device__ __forceinline__ void add_4(float* to, float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
#else
    atomicAdd(to, a);
    atomicAdd(to + 1, b);
    atomicAdd(to + 2, c);
    atomicAdd(to + 3, d);
#endif
}

//: exp2_fast
// 2 to the power of x by the special function unit (2 ulp); results below 2**-126 become 0, which beside a sum of 1 is
// nothing.
#ifndef TT_EMULATE
__device__ __forceinline__ float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#else
__device__ __forceinline__ float exp2_fast(float x) { float y = exp2f(x); return y < 1.17549435e-38f ? 0.0f : y; }
#endif

//: wgmma_64x64x16 wgmma_begin wgmma_end wgmma_wait wgmma_keep wgmma_sees_shared
// Products by a group of four warps (Hopper's warpgroup) that the tensor cores take from shared memory by themselves.
// c += a b for a 64x16, b 16x64, c 64x64: warp w of the group holds rows 16 w to 16 w + 15 of a and c, as in mma_16x8x16, c
// being the 8 columns from 8 (FROM + n) on in c[FROM + n].  b comes from a panel: rows of 64 elements of 2 bytes, from a
// multiple of 1024 bytes on, in which chunk i (8 elements) of row r stands in place i ^ r % 8.
//   b[k][n] = panel[n][16 step + k];  TURNED: panel[16 step + k][n];  FRESH: c = a b
// a may come from another panel: a[m][k] = rows[m][16 step + k].
// Products run behind the threads: wgmma_begin, any number of products, wgmma_end make a bundle; wgmma_wait<N>(c) waits for all
// but the last N bundles.  Until then nobody may touch c, a, or the panel.  wgmma_sees_shared: what this thread has
// written to shared memory is seen by products that begin after the next barrier.  wgmma_keep(a): registers that products read
// again in the next round of a loop.  ptxas (12.9 and 13.0) takes no notice of such a reader and gives the registers away,
// so another instruction has to read them: blockIdx.z is 0, which the compiler does not know.
#ifndef TT_EMULATE
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_sees_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N, int COUNT> __device__ __forceinline__ void wgmma_wait(float (&c)[COUNT][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
#pragma unroll
    for (int n = 0; n < COUNT; ++n)  // c is only now what it says
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) :: "memory");
}
template <int COUNT> __device__ __forceinline__ void wgmma_keep(unsigned (&a)[COUNT][4]) {
#pragma unroll
    for (int step = 0; step < COUNT; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("xor.b32 %0, %0, %1;" : "+r"(a[step][i]) : "r"(blockIdx.z));
}
// Low word: start / 16, and what would lead to columns beyond 64 (nothing).  High: 1024 bytes from 8 rows to 8 rows, that order.
__device__ __forceinline__ unsigned long long panel_place(const void* panel, int bytes) {
    unsigned low = ((unsigned)__cvta_generic_to_shared(panel) & 0x3ffff) >> 4 | 1u << 16;
    return low + bytes / 16 | (unsigned long long)(1u << 30 | 64) << 32;
}
#define WGMMA_SUM(n) "+f"(c[FROM + n][0]), "+f"(c[FROM + n][1]), "+f"(c[FROM + n][2]), "+f"(c[FROM + n][3])
#define WGMMA_64x64x16(type, operands, ...)                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                        \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
        "%28,%29,%30,%31}, " operands                                                                               \
        : WGMMA_SUM(0), WGMMA_SUM(1), WGMMA_SUM(2), WGMMA_SUM(3), WGMMA_SUM(4), WGMMA_SUM(5), WGMMA_SUM(6), WGMMA_SUM(7) \
        : __VA_ARGS__, "l"(panel_place(panel, step * (TURNED ? 2048 : 32))), "n"(!FRESH), "n"(TURNED))
#define WGMMA_FUNCTIONS(elem, type)                                                                                 \
    template <int TURNED, int FROM, bool FRESH, int COUNT>                                                          \
    __device__ __forceinline__ void wgmma_64x64x16(float (&c)[COUNT][4], const unsigned (&a)[4], const elem* panel, int step) { \
        WGMMA_64x64x16(type, "{%32,%33,%34,%35}, %36, %37, 1, 1, %38;", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])); \
    }                                                                                                               \
    template <int TURNED, int FROM, bool FRESH, int COUNT>                                                          \
    __device__ __forceinline__ void wgmma_64x64x16(float (&c)[COUNT][4], const elem* rows, const elem* panel, int step) { \
        WGMMA_64x64x16(type, "%32, %33, %34, 1, 1, 0, %35;", "l"(panel_place(rows, step * 32)));                    \
    }
WGMMA_FUNCTIONS(bf16, "bf16")
WGMMA_FUNCTIONS(f16, "f16")
#else
__device__ __forceinline__ void wgmma_begin() {}
__device__ __forceinline__ void wgmma_end() {}
__device__ __forceinline__ void wgmma_sees_shared() {}
template <int N, int COUNT> __device__ __forceinline__ void wgmma_wait(float (&)[COUNT][4]) {}
template <int COUNT> __device__ __forceinline__ void wgmma_keep(unsigned (&)[COUNT][4]) {}
template <class E> __device__ __forceinline__ float in_panel(const E* panel, int row, int column) {
    return to_float(panel[64 * row + 8 * (column / 8 ^ row % 8) + column % 8]);
}
template <int TURNED, int FROM, bool FRESH, int COUNT, class E>
__device__ __forceinline__ void wgmma_of(float (&c)[COUNT][4], const float (&a)[2][16], const E* panel, int step) {
    for (int n = 0; n < 8; ++n)
        for (int e = 0; e < 2; ++e) {
            int across = 8 * n + tt_lane() % 4 * 2 + e;
            if (FRESH) c[FROM + n][e] = c[FROM + n][2 + e] = 0.0f;
            for (int k = 0; k < 16; ++k) {
                float b = TURNED ? in_panel(panel, 16 * step + k, across) : in_panel(panel, across, 16 * step + k);
                for (int half = 0; half < 2; ++half) c[FROM + n][2 * half + e] += a[half][k] * b;
            }
        }
}
template <int TURNED, int FROM, bool FRESH, int COUNT, class E>
__device__ __forceinline__ void wgmma_64x64x16(float (&c)[COUNT][4], const unsigned (&a)[4], const E* panel, int step) {
    float mine[2][16];
    mma_rows(mine, a, E());
    wgmma_of<TURNED, FROM, FRESH>(c, mine, panel, step);
}
template <int TURNED, int FROM, bool FRESH, int COUNT, class E>
__device__ __forceinline__ void wgmma_64x64x16(float (&c)[COUNT][4], const E* rows, const E* panel, int step) {
    float mine[2][16];
    for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 16; ++k)
            mine[half][k] = in_panel(rows, threadIdx.x / 32 % 4 * 16 + tt_lane() / 4 + 8 * half, 16 * step + k);
    wgmma_of<TURNED, FROM, FRESH>(c, mine, panel, step);
}
#endif
