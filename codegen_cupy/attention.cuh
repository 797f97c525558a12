// What the attention kernels share: tiles in shared memory, products of tiles, dropout.
// The program writes before this text: elem (bf16 or f16), mask_elem; D (head size, a multiple of 8), DP (D rounded up
// to 16), THREADS; CAUSAL, MASK (0 none, 1 bool, 2 added), DROPOUT; SCALE, DROP (probability).

constexpr int PITCH = DP + 8;  // elements from row to row of a tile: eight rows then start in eight different bank groups
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
constexpr float FACTOR = MASK == 2 ? LOG2E : SCALE * LOG2E;  // from a score to the exponent of 2
#define MINUS_INFINITY __int_as_float(0xff800000)

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

// Ask for ROWS rows of a matrix, `left` of which exist; the rest, and columns beyond D, are zeros.
template <int ROWS>
__device__ __forceinline__ void ask_tile(elem* to, const elem* from, long long stride, int left) {
    constexpr int CHUNKS = DP / 8;
    if constexpr (THREADS % CHUNKS == 0 && ROWS % (THREADS / CHUNKS) == 0) {  // each thread stays in its columns
        constexpr int STEP = THREADS / CHUNKS;
        int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 8;
        const elem* source = from + row * stride + column;
        elem* target = to + row * PITCH + column;
#pragma unroll
        for (int r = 0; r < ROWS; r += STEP) {
            bool there = row + r < left && column < D;
            copy_16(target + r * PITCH, there ? source : from, there);
            source += STEP * stride;
        }
    } else {
        for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
            int row = i / CHUNKS, column = i % CHUNKS * 8;
            bool there = row < left && column < D;
            copy_16(to + row * PITCH + column, there ? from + row * stride + column : from, there);
        }
    }
}

// The operand "a" of a product: 16 rows by 16 columns, from row `row` and column 16 step of a tile.
__device__ __forceinline__ void rows_of(unsigned (&a)[4], const elem* tile, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(a, tile + (row + lane % 16) * PITCH + step * 16 + lane / 16 * 8);
}

// c += x y^T: x is MT times 16 rows of one tile from `row` on, y the first 8 NT rows of another; summed over columns.
template <int MT, int NT>
__device__ __forceinline__ void add_rows_times_rows(float (&c)[MT][NT][4], const elem* x, int row, const elem* y) {
    int lane = threadIdx.x % 32;
    const elem* at = y + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < DP / 16; ++step) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) rows_of(a[m], x, row + 16 * m, step);
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
__device__ __forceinline__ void add_rows_times_rows(float (&c)[MT][NT][4], const unsigned (&x)[MT][DP / 16][4], const elem* y) {
    int lane = threadIdx.x % 32;
    const elem* at = y + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < DP / 16; ++step) {
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

// c += w y: w is the 8 KT columns of weights this warp has just computed, in the layout of a result, which rounded to
// pairs is that of an operand; y the first 8 KT rows of a tile.
template <int MT, int KT>
__device__ __forceinline__ void add_weights_times_rows(float (&c)[MT][DP / 8][4], const float (&w)[MT][KT][4], const elem* y) {
    int lane = threadIdx.x % 32;
    const elem* at = y + lane % 16 * PITCH + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < KT / 2; ++step) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const float(&left)[4] = w[m][2 * step], (&right)[4] = w[m][2 * step + 1];
            a[m][0] = pack_pair(left[0], left[1], elem());
            a[m][1] = pack_pair(left[2], left[3], elem());
            a[m][2] = pack_pair(right[0], right[1], elem());
            a[m][3] = pack_pair(right[2], right[3], elem());
        }
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            unsigned b[4];
            load_matrices_turned(b, at + step * 16 * PITCH + n * 8);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16x8x16(c[m][n], a[m], b[0], b[1], elem());
                mma_16x8x16(c[m][n + 1], a[m], b[2], b[3], elem());
            }
        }
    }
}

template <int MT, int NT>
__device__ __forceinline__ void clear(float (&c)[MT][NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
}

// A warp's result, rounded, to global memory by way of its rows of a tile that nobody else reads any more.
// factor(m, half) scales the rows group and group + 8 of the m-th 16.
template <int MT, class F>
__device__ __forceinline__ void write_rows(
    elem* to, long long stride, int left, elem* tile, int row, const float (&c)[MT][DP / 8][4], F factor) {
    int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float f = factor(m, half);
            elem* at = tile + (row + 16 * m + 8 * half + group) * PITCH + 2 * place;
#pragma unroll
            for (int n = 0; n < DP / 8; ++n)
                *(unsigned*)(at + 8 * n) = pack_pair(c[m][n][2 * half] * f, c[m][n][2 * half + 1] * f, elem());
        }
    __syncwarp();
    for (int i = lane; i < MT * 16 * (D / 8); i += 32) {
        int r = row + i / (D / 8), column = i % (D / 8) * 8;
        if (r < left) *(Pack<elem, 8>*)(to + r * stride + column) = *(const Pack<elem, 8>*)(tile + r * PITCH + column);
    }
}

// Which of the elements i and i + 1 of all scores dropout keeps.
struct Kept { bool at[2]; };
__device__ __forceinline__ Kept kept_pair(long long seed, long long counter, long long i) {
    PhiloxWords w = philox_words(seed, counter + (i >> 2));
    int lane = (int)(i & 3);
    unsigned second = lane < 3 ? w.at[lane + 1 & 3] : philox_words(seed, counter + (i >> 2) + 1).at[0];
    Kept out;
    out.at[0] = (float)(w.at[lane] >> 8) * 5.9604644775390625e-08f >= DROP;
    out.at[1] = (float)(second >> 8) * 5.9604644775390625e-08f >= DROP;
    return out;
}
__device__ __forceinline__ bool kept_one(long long seed, long long counter, long long i) {
    return (float)(philox(seed, counter + (i >> 2), i & 3) >> 8) * 5.9604644775390625e-08f >= DROP;
}

// A score after scale and mask, or minus infinity.
template <class M>
__device__ __forceinline__ float masked(float s, const M* mask, long long at, bool seen) {
    if (!seen) return MINUS_INFINITY;
    if constexpr (MASK == 1) return mask[at] ? s : MINUS_INFINITY;
    if constexpr (MASK == 2) return s * SCALE + to_float(mask[at]);
    return s;
}
