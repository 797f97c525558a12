// What the attention kernels share: tiles in shared memory, products of tiles, which scores exist, mask and dropout.
// The program writes before this text: elem (bf16 or f16), mask_elem; D (head size, a multiple of 8), DP (D rounded up
// to 16, or to 64 with GROUPS: the rest is zeros), THREADS; CAUSAL, MASK (0 none, 1 bool, 2 added), DROPOUT; SCALE, DROP (probability); MT, WARPS and
// GROUPS: products by four warps together (wgmma; MT is 1) or by each warp for itself (mma.sync).

constexpr int PITCH = GROUPS ? 64 : DP + 8;  // from row to row of a tile; DP + 8: eight rows start in eight different bank groups
constexpr int DEEP = (D + 15) / 16;  // steps of 16 of a product along the head
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
constexpr float FACTOR = MASK == 2 ? LOG2E : SCALE * LOG2E;  // from a score to the exponent of 2
#define MINUS_INFINITY __int_as_float(0xff800000)
#define PLACE(x) long long x##0, long long x##_batch, long long x##_head, long long x##_row
#define SIZES long long heads, long long group_size, long long rows, long long columns, long long shift
#define MASK_AND_STATE PLACE(m), long long m_column, long long state0

template <bool B> struct Flag { static constexpr bool value = B; };
__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

template <int ROWS> constexpr int ROOM = ROWS * (GROUPS ? DP : PITCH);  // what a tile takes, in elements

// Where an element of a tile of ROWS rows stands.  In panels of 64 columns if the tensor cores fetch it by themselves.
template <int ROWS> __device__ __forceinline__ int spot(int row, int column) {
    if constexpr (GROUPS) return (column / 64 * ROWS + row) * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    else return row * PITCH + column;
}

// Ask for ROWS rows of a matrix, `left` of which exist; the rest, and columns beyond D, are zeros.  ALL: there are none such.
template <int ROWS, bool ALL>
__device__ __forceinline__ void ask_rows(elem* to, const elem* from, long long stride, int left) {
    constexpr int CHUNKS = DP / 8, STEP = THREADS / CHUNKS;
    if constexpr (THREADS % CHUNKS == 0 && (!GROUPS || STEP % 8 == 0)) {  // each thread stays in its columns
        const int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 8;
        const elem* source = from + (row * stride + column);
        elem* target = to + spot<ROWS>(row, column);
#pragma unroll
        for (int r = 0; r < ROWS; r += STEP) {
            bool there = ALL || (row + r < left && column < D);
            if (ROWS % STEP == 0 || row + r < ROWS) copy_16(target + r * PITCH, there ? source + r * stride : from, there);
        }
    } else {
        for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
            int row = i / CHUNKS, column = i % CHUNKS * 8;
            bool there = ALL || (row < left && column < D);
            copy_16(to + spot<ROWS>(row, column), there ? from + row * stride + column : from, there);
        }
    }
}
template <int ROWS> __device__ __forceinline__ void ask_tile(elem* to, const elem* from, long long stride, int left) {
    if (D == DP && left >= ROWS) ask_rows<ROWS, true>(to, from, stride, left);
    else ask_rows<ROWS, false>(to, from, stride, left);
}

// Wait until all but the last N groups of copies are there, for everybody, the tensor cores too.
template <int N> __device__ __forceinline__ void meet_copies() {
    copies_wait<N>();
    if constexpr (GROUPS) wgmma_sees_shared();
    __syncthreads();
}

// Products stand between begin and end; a sum is ready after its wait<N>, which leaves the last N such bundles running.
__device__ __forceinline__ void products_begin() { if constexpr (GROUPS) wgmma_begin(); }
__device__ __forceinline__ void products_end() { if constexpr (GROUPS) wgmma_end(); }
template <int N, int MT, int NT> __device__ __forceinline__ void products_wait(float (&c)[MT][NT][4]) {
    if constexpr (GROUPS) wgmma_wait<N>(c[0]);
}

// The operand "a" of a product: 16 rows by 16 columns, from row `row` and column 16 step of a tile.
template <int ROWS> __device__ __forceinline__ void rows_of(unsigned (&a)[4], const elem* tile, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(a, tile + spot<ROWS>(row + lane % 16, step * 16 + lane / 16 * 8));
}
template <int ROWS, int MT> __device__ __forceinline__ void rows_of(unsigned (&a)[MT][DEEP][4], const elem* tile, int row) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int step = 0; step < DEEP; ++step) rows_of<ROWS>(a[m][step], tile, row + 16 * m, step);
}

// Operands that stay in registers through a walk: said once a round, after the wait for the products that read them.
template <int MT> __device__ __forceinline__ void keep(unsigned (&a)[MT][DEEP][4]) {
    if constexpr (GROUPS) wgmma_keep(a[0]);
}

template <int MT, int NT>
__device__ __forceinline__ void clear(float (&c)[MT][NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
}

// Columns 8 FROM to 8 NT of x y^T by a group of four warps; y has 8 NT rows; x: 64 of X_ROWS rows, or in registers.
template <int X_ROWS, int FROM, int NT>
__device__ __forceinline__ void group_rows_times_rows(float (&c)[NT][4], const elem* x, const elem* y) {
    wgmma_64x64x16<0, FROM, true>(c, x, y + 8 * FROM * 64, 0);
#pragma unroll
    for (int step = 1; step < DEEP; ++step)
        wgmma_64x64x16<0, FROM, false>(c, x + step / 4 * X_ROWS * 64, y + (step / 4 * 8 * NT + 8 * FROM) * 64, step % 4);
    if constexpr (FROM + 8 < NT) group_rows_times_rows<X_ROWS, FROM + 8>(c, x, y);
}
template <int FROM, int NT>
__device__ __forceinline__ void group_rows_times_rows(float (&c)[NT][4], const unsigned (&x)[DEEP][4], const elem* y) {
    wgmma_64x64x16<0, FROM, true>(c, x[0], y + 8 * FROM * 64, 0);
#pragma unroll
    for (int step = 1; step < DEEP; ++step)
        wgmma_64x64x16<0, FROM, false>(c, x[step], y + (step / 4 * 8 * NT + 8 * FROM) * 64, step % 4);
    if constexpr (FROM + 8 < NT) group_rows_times_rows<FROM + 8>(c, x, y);
}

// c = x y^T: x is MT times 16 rows of a tile of X_ROWS, from `row` on, y the 8 NT rows of another; summed over columns.
template <int X_ROWS, int MT, int NT>
__device__ __forceinline__ void rows_times_rows(float (&c)[MT][NT][4], const elem* x, int row, const elem* y) {
    if constexpr (GROUPS) return group_rows_times_rows<X_ROWS, 0>(c[0], x + row / 64 * 64 * 64, y);
    clear(c);
    int lane = threadIdx.x % 32;
    const elem* at = y + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < DEEP; ++step) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) rows_of<X_ROWS>(a[m], x, row + 16 * m, step);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            unsigned b[4];
            load_matrices(b, at + n * 8 * PITCH + step * 16);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16x8x16(c[m][n], a[m], b[0], b[1], elem());
                mma_16x8x16(c[m][n + 1], a[m], b[2], b[3], elem());
            }
        }
    }
}

// The same with x in registers.
template <int MT, int NT>
__device__ __forceinline__ void rows_times_rows(float (&c)[MT][NT][4], const unsigned (&x)[MT][DEEP][4], const elem* y) {
    if constexpr (GROUPS) return group_rows_times_rows<0>(c[0], x[0], y);
    clear(c);
    int lane = threadIdx.x % 32;
    const elem* at = y + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < DEEP; ++step) {
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            unsigned b[4];
            load_matrices(b, at + n * 8 * PITCH + step * 16);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16x8x16(c[m][n], x[m][step], b[0], b[1], elem());
                mma_16x8x16(c[m][n + 1], x[m][step], b[2], b[3], elem());
            }
        }
    }
}

// Weights a warp has just computed are in the layout of a result, which rounded to pairs is that of the operand "a".
template <int MT, int KT>
__device__ __forceinline__ void pack_weights(unsigned (&a)[MT][KT / 2][4], const float (&w)[MT][KT][4]) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int step = 0; step < KT / 2; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[m][step][i] = pack_pair(w[m][2 * step + i / 2][i % 2 * 2], w[m][2 * step + i / 2][i % 2 * 2 + 1], elem());
}

// Columns 8 FROM to DP of w y.
template <int FROM, int STEPS>
__device__ __forceinline__ void group_weights_times_rows(float (&c)[DP / 8][4], const unsigned (&w)[STEPS][4], const elem* y) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma_64x64x16<1, FROM, false>(c, w[step], y + FROM / 8 * 16 * STEPS * 64, step);
    if constexpr (FROM + 8 < DP / 8) group_weights_times_rows<FROM + 8>(c, w, y);
}

// c += w y: w are packed weights in 16 STEPS columns, y as many rows of a tile.
template <int MT, int STEPS>
__device__ __forceinline__ void add_weights_times_rows(float (&c)[MT][DP / 8][4], const unsigned (&w)[MT][STEPS][4], const elem* y) {
    if constexpr (GROUPS) return group_weights_times_rows<0>(c[0], w[0], y);
    int lane = threadIdx.x % 32;
    const elem* at = y + lane % 16 * PITCH + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            unsigned b[4];
            load_matrices_turned(b, at + step * 16 * PITCH + n * 8);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16x8x16(c[m][n], w[m][step], b[0], b[1], elem());
                mma_16x8x16(c[m][n + 1], w[m][step], b[2], b[3], elem());
            }
        }
}

// A warp's result, rounded, to global memory by way of its rows of a tile that nobody else reads any more.
// factor(m, half) scales the rows group and group + 8 of the m-th 16.
template <int ROWS, int MT, class F>
__device__ __forceinline__ void write_rows(
    elem* to, long long stride, int left, elem* tile, int row, const float (&c)[MT][DP / 8][4], F factor) {
    int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float f = factor(m, half);
            const int r = row + 16 * m + 8 * half + group;
#pragma unroll
            for (int n = 0; n < DP / 8; ++n)
                *(unsigned*)(tile + spot<ROWS>(r, 8 * n + 2 * place)) = pack_pair(c[m][n][2 * half] * f, c[m][n][2 * half + 1] * f, elem());
        }
    __syncwarp();
    for (int i = lane; i < MT * 16 * (D / 8); i += 32) {
        int r = row + i / (D / 8), column = i % (D / 8) * 8;
        if (r < left) *(Pack<elem, 8>*)(to + r * stride + column) = *(const Pack<elem, 8>*)(tile + spot<ROWS>(r, column));
    }
}

// The scores of one head: which exist, the mask over them, what dropout keeps.
struct Kept { bool at[2]; };
template <class M> struct Scores {
    int rows, columns;
    const M* mask;
    long long m_row, m_column;
    long long seed, counter, number;  // number of the first score among all heads'

    // A score after scale and mask, or minus infinity.
    __device__ float masked(float s, int row, int column) const {
        if (column >= columns || (MASK && row >= rows) || (CAUSAL && column > row)) return MINUS_INFINITY;
        if constexpr (MASK == 1) return mask[row * m_row + column * m_column] ? s : MINUS_INFINITY;
        if constexpr (MASK == 2) return s * SCALE + to_float(mask[row * m_row + column * m_column]);
        return s;
    }
    __device__ bool kept(int row, int column) const {
        long long i = number + (long long)row * columns + column;
        return (float)(philox(seed, counter + (i >> 2), i & 3) >> 8) * 5.9604644775390625e-08f >= DROP;
    }
    // The same for a column and the next one, which mostly lie in one block of random words.
    __device__ Kept kept_pair(int row, int column) const {
        long long i = number + (long long)row * columns + column;
        PhiloxWords w = philox_words(seed, counter + (i >> 2));
        int lane = (int)(i & 3);
        unsigned second = lane < 3 ? w.at[lane + 1 & 3] : philox_words(seed, counter + (i >> 2) + 1).at[0];
        Kept out;
        out.at[0] = (float)(w.at[lane] >> 8) * 5.9604644775390625e-08f >= DROP;
        out.at[1] = (float)(second >> 8) * 5.9604644775390625e-08f >= DROP;
        return out;
    }
};
#define SCORES_OF(b, h) Scores<mask_elem>{                                                                             \
    (int)rows, (int)columns, mask + m0 + (b) * m_batch + (h) * m_head, m_row, m_column,                     \
    DROPOUT ? state[state0] : 0, DROPOUT ? state[state0 + 1] + shift : 0, ((b) * heads + (h)) * rows * columns}

// Where a thread stands: warp, and lane = 4 group + place.  A warp's first row of the block's is `own`.
struct Stand {
    int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = lane / 4, place = lane % 4, own = warp * 16 * MT;
    int unit = GROUPS ? warp / 4 * 64 : own, unit_rows = GROUPS ? 64 : 16 * MT;  // rows of those who go through the walk together
};

// A block that owns BM rows of a head and walks over the columns, BN at a time.
template <int BM, int BN> struct Walk : Stand {
    int first, b, h, kv;      // first of the block's rows; batch, head of queries, head of keys
    int tiles, mine, whole;  // of the block; of these the first `mine` concern this warp, and the first `whole` need no mask
    __device__ Walk(int heads, int group_size, int columns) {
        first = (CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * BM;  // the longest ones start first
        b = blockIdx.x / heads, h = blockIdx.x % heads, kv = h / group_size;
        tiles = ((CAUSAL ? smaller(columns, first + BM) : columns) + BN - 1) / BN;
        mine = CAUSAL ? smaller(tiles, (first + unit + unit_rows - 1) / BN + 1) : tiles;
        whole = MASK ? 0 : smaller(columns / BN, CAUSAL ? (first + unit + 1) / BN : columns);
    }
};
