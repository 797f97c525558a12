// Attention backward, the gradient of queries.  A block of warps owns BM = 16 MT WARPS rows of one head and walks over the
// columns as forward does:  S = Q K^T,  P = exp(S - lse),  dP = G V^T,  dS = P (dP - delta),  dQ += dS K.
// S and dP are computed here a second time (``attention_keys`` has them turned): five products become seven, but no block
// adds to what another one writes, so there are no atomics, no second buffer, and always the same bits.

constexpr int BM = 16 * MT * WARPS, BN = OTHER, NT = BN / 8;
constexpr int SHARED_BYTES = (2 * BM + 2 * STAGES * BN) * PITCH * 2;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* g, const elem* q, const elem* k, const elem* v, const float* delta, const float* lse,
    const mask_elem* mask, const long long* state, elem* dq,
    long long heads, long long group_size, long long rows, long long columns, long long shift,
    long long g0, long long g_batch, long long g_head, long long g_row,
    long long q0, long long q_batch, long long q_head, long long q_row,
    long long k0, long long k_batch, long long k_head, long long k_row,
    long long v0, long long v_batch, long long v_head, long long v_row,
    long long delta0, long long lse0,
    long long m0, long long m_batch, long long m_head, long long m_row, long long m_column, long long state0,
    long long dq0, long long dq_batch, long long dq_head, long long dq_row) {
    SHARED_POOL(pool, SHARED_BYTES);
    elem* q_tile = (elem*)pool;
    elem* g_tile = q_tile + BM * PITCH;
    elem* k_tiles = g_tile + BM * PITCH;
    elem* v_tiles = k_tiles + STAGES * BN * PITCH;
    const int T = (int)rows, S = (int)columns, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const int row_block = CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
    const int first = row_block * BM, own = warp * 16 * MT;
    const int bh = blockIdx.x, b = bh / (int)heads, h = bh % (int)heads, kv = h / (int)group_size;
    q += q0 + b * q_batch + h * q_head + first * q_row;
    g += g0 + b * g_batch + h * g_head + first * g_row;
    k += k0 + b * k_batch + kv * k_head;
    v += v0 + b * v_batch + kv * v_head;
    lse += lse0 + (long long)bh * T + first;
    delta += delta0 + (long long)bh * T + first;
    const int end = CAUSAL ? smaller(S, first + BM) : S, tiles = (end + BN - 1) / BN;
    const int whole = MASK ? 0 : smaller(S / BN, CAUSAL ? (first + 1) / BN : S);
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
    ask_tile<BM>(g_tile, g, g_row, T - first);
    for (int tile = 0; tile < STAGES - 1; ++tile) ask(tile);

    float sum[MT][DP / 8][4], level[MT][2], drop[MT][2];
    unsigned q_rows[MT][DP / 16][4], g_rows[MT][DP / 16][4];  // unused unless REGISTERS
    clear(sum);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = own + 16 * m + 8 * half + group;
            float l = first + row < T ? lse[row] : 0.0f;
            level[m][half] = (l == MINUS_INFINITY ? -l : l) * LOG2E;  // a row that sees nobody has weights of zero
            drop[m][half] = first + row < T ? delta[row] : 0.0f;
        }

    for (int tile = 0; tile < tiles; ++tile) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        ask(tile + STAGES - 1);
        const elem* k_tile = k_tiles + tile % STAGES * BN * PITCH;
        const elem* v_tile = v_tiles + tile % STAGES * BN * PITCH;
        float p[MT][NT][4], ds[MT][NT][4];
        clear(p);
        clear(ds);
        if constexpr (REGISTERS) {
            if (tile == 0) {
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int step = 0; step < DP / 16; ++step) {
                        rows_of(q_rows[m][step], q_tile, own + 16 * m, step);
                        rows_of(g_rows[m][step], g_tile, own + 16 * m, step);
                    }
            }
            add_rows_times_rows(p, q_rows, k_tile);
            add_rows_times_rows(ds, g_rows, v_tile);
        } else {
            add_rows_times_rows(p, q_tile, own, k_tile);
            add_rows_times_rows(ds, g_tile, own, v_tile);
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
                        p[m][n][e] = masked(p[m][n][e], mask, at, seen);
                    }
        }
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    Kept keep = {{true, true}};
                    if constexpr (DROPOUT) {
                        long long row = (long long)bh * T + first + own + 16 * m + group + 8 * half;
                        keep = kept_pair(seed, counter, row * S + tile * BN + 8 * n + 2 * place);
                    }
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float weight = exp2_fast(p[m][n][2 * half + e] * FACTOR - level[m][half]);
                        float dp = keep.at[e] ? ds[m][n][2 * half + e] * (1.0f / (1.0f - DROP)) : 0.0f;
                        ds[m][n][2 * half + e] = weight * (dp - drop[m][half]);
                    }
                }
        add_weights_times_rows(sum, ds, k_tile);
    }

    copies_wait<0>();
    __syncthreads();
    dq += dq0 + b * dq_batch + h * dq_head + first * dq_row;
    write_rows<MT>(dq, dq_row, T - first, q_tile, own, sum, [](int, int) { return SCALE; });
}
