// What the products of tensor cores share: a warp's part of the sums, and reading operands in the order the products want.
// GROUPED: four warps work together (wgmma), each on every fourth 16 rows of their part; else each warp has a part of its own.

constexpr int MT = WM / 16, NT = WN / 8;
static_assert(MT >= 1 && NT % 2 == 0, "a warp's part is made of pairs of 16 by 8");
struct Sums { float at[MT][NT][4]; };

__device__ __forceinline__ int own_row(int m) {
    const int warp = threadIdx.x / 32;
    return GROUPED ? warp / 4 / WARPS_N * 64 * MT + 64 * m + warp % 4 * 16 : warp / WARPS_N * WM + 16 * m;
}
__device__ __forceinline__ int own_column() {
    const int warp = threadIdx.x / 32;
    return (GROUPED ? warp / 4 : warp) % WARPS_N * WN;
}

__device__ __forceinline__ void clear(Sums& s) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s.at[m][n][e] = 0.0f;
}

// Four 8 by 8 matrices (of float: 8 by 4) of a tile: two at lines and two at places, in the order the products want.
// `across` says which of the two comes first.
template <int LINES, int LENGTH>
__device__ __forceinline__ void deep_matrices(unsigned (&to)[4], const elem* tile, int line, int depth, bool lines_first) {
    const int lane = threadIdx.x % 32, i = lane / 8, down = lines_first ? i % 2 : i / 2, on = lines_first ? i / 2 : i % 2;
    load_matrices(to, tile + spot<LINES, LENGTH, true>(line + lane % 8 + 8 * down, depth + on * CHUNK));
}
template <int LINES, int LENGTH>
__device__ __forceinline__ void flat_matrices(unsigned (&to)[4], const elem* tile, int depth, int place, bool places_first) {
    const int lane = threadIdx.x % 32;
    if constexpr (sizeof(elem) == 2) {
        const int i = lane / 8, on = places_first ? i % 2 : i / 2, down = places_first ? i / 2 : i % 2;
        load_matrices_turned(to, tile + spot<LINES, LENGTH, false>(depth + lane % 8 + 8 * down, place + 8 * on));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int on = places_first ? i % 2 : i / 2, down = places_first ? i / 2 : i % 2;
            to[i] = *(const unsigned*)(tile + spot<LINES, LENGTH, false>(depth + lane % 4 + 4 * down, place + lane / 4 + 8 * on));
        }
    }
}

// All sums of the block to shared memory, row by row.
__device__ __forceinline__ void spread(const Sums& s, float* tile) {
    const int lane = threadIdx.x % 32;
    float* own = tile + lane / 4 * SUMS_PITCH + own_column() + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_pack(own + (own_row(m) + 8 * half) * SUMS_PITCH + 8 * n, Pack<float, 2>{s.at[m][n][2 * half], s.at[m][n][2 * half + 1]});
    __syncthreads();
}
