// Products of tiles by ordinary multiply-adds in float32.  A warp's lanes stand 4 by 8; each sums ROWS by COLUMNS elements of
// the warp's WM by WN part.  Of an operand that lies along the depth a thread reads four steps of a line at once, of
// the other kind four neighbours of a step.

constexpr int ROWS = WM / 4, COLUMNS = WN / 8;
static_assert(ROWS % 4 == 0 && COLUMNS % 4 == 0 && BK % 4 == 0, "threads read four elements at once");
struct Sums { float at[ROWS][COLUMNS]; };

__device__ __forceinline__ void clear(Sums& s) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) s.at[r][c] = 0.0f;
}

// Which of its warp's rows (columns) is the thread's i-th, the thread standing at `at` of LANES: neighbours of the memory
// that is read at once, by one thread or by all.
template <int LANES, bool DEEP>
__device__ __forceinline__ int own(int at, int i) { return DEEP ? at + LANES * i : i / 4 * 4 * LANES + at * 4 + i % 4; }

// Four steps of the depth of the thread's COUNT elements, each.
template <int SIDE, int LANES, bool DEEP, int COUNT>
__device__ __forceinline__ void read(float (&to)[4][COUNT], const float* tile, int first, int at, int k) {
    if constexpr (DEEP) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const Pack<float, 4> four = load_pack<4>(tile + spot<SIDE, BK, true>(first + own<LANES, true>(at, i), k));
#pragma unroll
            for (int j = 0; j < 4; ++j) to[j][i] = four.at[j];
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                const Pack<float, 4> four = load_pack<4>(tile + spot<BK, SIDE, false>(k + j, first + own<LANES, false>(at, i)));
#pragma unroll
                for (int x = 0; x < 4; ++x) to[j][i + x] = four.at[x];
            }
    }
}

__device__ __forceinline__ void before_the_barrier() {}
__device__ __forceinline__ void start(Sums&, const elem*, const elem*) {}
__device__ __forceinline__ void finish(Sums& s, const elem* a_tile, const elem* b_tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / WARPS_N * WM, column = warp % WARPS_N * WN;
#pragma unroll
    for (int k = 0; k < BK; k += 4) {
        float a[4][ROWS], b[4][COLUMNS];
        read<BM, 4, A_DEEP>(a, a_tile, row, lane / 8, k);
        read<BN, 8, B_DEEP>(b, b_tile, column, lane % 8, k);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) s.at[r][c] = fmaf(a[j][r], b[j][c], s.at[r][c]);
    }
}

// All sums of the block to shared memory, row by row.
__device__ __forceinline__ void spread(const Sums& s, float* tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / WARPS_N * WM, column = warp % WARPS_N * WN;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            tile[(row + own<4, A_DEEP>(lane / 8, r)) * SUMS_PITCH + column + own<8, B_DEEP>(lane % 8, c)] = s.at[r][c];
    __syncthreads();
}
