// Attention forward (FlashAttention-2, Dao, 2023).  A block of WARPS warps owns BM = 16 MT WARPS rows of one head; it walks
// over the columns, BN at a time, K and V arriving STAGES - 1 tiles ahead.  Each warp keeps its rows' running maximum,
// sum and output in registers, so the warps meet only at the arrival of tiles.

constexpr int BM = 16 * MT * WARPS, BN = OTHER, NT = BN / 8;
constexpr int SHARED_BYTES = (BM + 2 * STAGES * BN) * PITCH * 2;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* q, const elem* k, const elem* v, const mask_elem* mask, const long long* state, elem* out, float* lse,
    long long heads, long long group_size, long long rows, long long columns, long long shift,
    long long q0, long long q_batch, long long q_head, long long q_row,
    long long k0, long long k_batch, long long k_head, long long k_row,
    long long v0, long long v_batch, long long v_head, long long v_row,
    long long m0, long long m_batch, long long m_head, long long m_row, long long m_column,
    long long state0, long long o0, long long o_batch, long long o_head, long long o_row, long long lse0) {
    SHARED_POOL(pool, SHARED_BYTES);
    elem* q_tile = (elem*)pool;
    elem* k_tiles = q_tile + BM * PITCH;
    elem* v_tiles = k_tiles + STAGES * BN * PITCH;
    const int T = (int)rows, S = (int)columns, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const int row_block = CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y;  // the longest ones start first
    const int first = row_block * BM, own = warp * 16 * MT;
    const int bh = blockIdx.x, b = bh / (int)heads, h = bh % (int)heads, kv = h / (int)group_size;
    q += q0 + b * q_batch + h * q_head + first * q_row;
    k += k0 + b * k_batch + kv * k_head;
    v += v0 + b * v_batch + kv * v_head;
    const int end = CAUSAL ? smaller(S, first + BM) : S, tiles = (end + BN - 1) / BN;
    const int whole = MASK ? 0 : smaller(S / BN, CAUSAL ? (first + 1) / BN : S);  // tiles before this one need no mask
    long long seed = 0, counter = 0;
    if constexpr (DROPOUT) { seed = state[state0]; counter = state[state0 + 1] + shift; }

    auto ask = [&](int tile) {
        if (tile < tiles) {
            int slot = tile % STAGES, at = tile * BN;
            ask_tile<BN>(k_tiles + slot * BN * PITCH, k + at * k_row, k_row, S - at);
            ask_tile<BN>(v_tiles + slot * BN * PITCH, v + at * v_row, v_row, S - at);
        }
        copies_end_group();
    };
    ask_tile<BM>(q_tile, q, q_row, T - first);
    for (int tile = 0; tile < STAGES - 1; ++tile) ask(tile);

    float mixed[MT][DP / 8][4], peak[MT][2], total[MT][2];
    unsigned q_rows[MT][DP / 16][4];  // unused unless REGISTERS
    clear(mixed);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
        peak[m][0] = peak[m][1] = MINUS_INFINITY;
        total[m][0] = total[m][1] = 0.0f;
    }

    for (int tile = 0; tile < tiles; ++tile) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        ask(tile + STAGES - 1);  // into the slot that all have left
        const elem* k_tile = k_tiles + tile % STAGES * BN * PITCH;
        const elem* v_tile = v_tiles + tile % STAGES * BN * PITCH;
        float s[MT][NT][4];
        clear(s);
        if constexpr (REGISTERS) {
            if (tile == 0) {
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int step = 0; step < DP / 16; ++step) rows_of(q_rows[m][step], q_tile, own + 16 * m, step);
            }
            add_rows_times_rows(s, q_rows, k_tile);
        } else {
            add_rows_times_rows(s, q_tile, own, k_tile);
        }
        if (tile >= whole) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        int row = first + own + 16 * m + group + e / 2 * 8, column = tile * BN + 8 * n + 2 * place + e % 2;
                        bool seen = column < S && (!MASK || row < T) && (!CAUSAL || column <= row);
                        long long at = MASK ? m0 + b * m_batch + h * m_head + row * m_row + column * m_column : 0;
                        s[m][n][e] = masked(s[m][n][e], mask, at, seen);
                    }
        }
        // the running softmax
        bool rises = false;
        float fade[MT][2];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = peak[m][half];
#pragma unroll
                for (int n = 0; n < NT; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float level = MASK && top == MINUS_INFINITY ? 0.0f : top * FACTOR;  // a row that has seen nothing yet
                fade[m][half] = exp2_fast(peak[m][half] * FACTOR - level);
                rises |= top > peak[m][half];
                peak[m][half] = top;
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        s[m][n][e] = exp2_fast(s[m][n][e] * FACTOR - level);
                        sum += s[m][n][e];
                    }
                total[m][half] = total[m][half] * fade[m][half] + sum;
            }
        if (__any_sync(0xffffffffu, rises)) {  // seldom, after the first tiles
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < DP / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) mixed[m][n][e] *= fade[m][e / 2];
        }
        if constexpr (DROPOUT) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        long long row = (long long)bh * T + first + own + 16 * m + group + 8 * half;
                        Kept keep = kept_pair(seed, counter, row * S + tile * BN + 8 * n + 2 * place);
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            if (!keep.at[e]) s[m][n][2 * half + e] = 0.0f;
                    }
        }
        add_weights_times_rows(mixed, s, v_tile);
    }

    out += o0 + b * o_batch + h * o_head + first * o_row;
    lse += lse0 + (long long)bh * T + first;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float& sum = total[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int row = own + 16 * m + 8 * half + group;
            float level = peak[m][half] == MINUS_INFINITY ? 0.0f : peak[m][half] * FACTOR;
            if (place == 0 && first + row < T) lse[row] = level * LN2 + logf(sum);  // minus infinity if nothing was seen
        }
    if (tiles == 0) copies_wait<0>();
    write_rows<MT>(out, o_row, T - first, q_tile, own, mixed, [&](int m, int half) {
        return total[m][half] == 0.0f ? 0.0f : 1.0f / (total[m][half] * (1.0f - DROP));
    });
}
