// Attention backward, the gradient of queries.  A block of warps owns BM = 16 MT WARPS rows of one head and walks over the
// columns as forward does:  S = Q K^T,  P = exp(S - lse),  dP = G V^T,  dS = P (dP - delta),  dQ += dS K.
// S and dP are computed here a second time (``attention_keys`` has them turned): five products become seven, but no block
// adds to what another one writes, so there are no atomics, no second buffer, and always the same bits.

constexpr int BM = 16 * MT * WARPS, BN = OTHER, NT = BN / 8;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* g, const elem* q, const elem* k, const elem* v, const float* delta, const float* lse,
    const mask_elem* mask, const long long* state, elem* dq,
    SIZES, PLACE(g), PLACE(q), PLACE(k), PLACE(v), long long delta0, long long lse0, MASK_AND_STATE, PLACE(dq)) {
    SHARED_POOL(pool, (2 * ROOM<BM> + 2 * STAGES * ROOM<BN>) * 2);
    elem* q_tile = (elem*)pool;
    elem* g_tile = q_tile + ROOM<BM>;
    elem* k_tiles = g_tile + ROOM<BM>;
    elem* v_tiles = k_tiles + STAGES * ROOM<BN>;
    const int T = (int)rows, S = (int)columns;
    const Walk<BM, BN> at((int)heads, (int)group_size, S);
    const auto scores = SCORES_OF(at.b, at.h);
    q += q0 + at.b * q_batch + at.h * q_head + at.first * q_row;
    g += g0 + at.b * g_batch + at.h * g_head + at.first * g_row;
    k += k0 + at.b * k_batch + at.kv * k_head;
    v += v0 + at.b * v_batch + at.kv * v_head;
    lse += lse0 + (long long)blockIdx.x * T + at.first;
    delta += delta0 + (long long)blockIdx.x * T + at.first;

    auto ask = [&](int tile) {  // one after another: k and v move on
        if (tile < at.tiles) {
            ask_tile<BN>(k_tiles + tile % STAGES * ROOM<BN>, k, k_row, S - tile * BN);
            ask_tile<BN>(v_tiles + tile % STAGES * ROOM<BN>, v, v_row, S - tile * BN);
            k += BN * k_row;
            v += BN * v_row;
        }
        copies_end_group();
    };
    ask_tile<BM>(q_tile, q, q_row, T - at.first);
    ask_tile<BM>(g_tile, g, g_row, T - at.first);
    for (int tile = 0; tile < STAGES - 1; ++tile) ask(tile);

    float sum[MT][DP / 8][4], level[MT][2], drop[MT][2];
    unsigned q_rows[MT][DEEP][4], g_rows[MT][DEEP][4];  // unused unless REGISTERS
    clear(sum);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = at.own + 16 * m + 8 * half + at.group;
            float l = at.first + row < T ? lse[row] : 0.0f;
            level[m][half] = (l == MINUS_INFINITY ? -l : l) * LOG2E;  // a row that sees nobody has weights of zero
            drop[m][half] = at.first + row < T ? delta[row] : 0.0f;
        }

    if constexpr (REGISTERS) {
        meet_copies<STAGES - 2>();
        rows_of<BM>(q_rows, q_tile, at.own);
        rows_of<BM>(g_rows, g_tile, at.own);
    }
    for (int tile = 0; tile < at.tiles; ++tile) {
        meet_copies<STAGES - 2>();
        ask(tile + STAGES - 1);
        if (tile >= at.mine) continue;
        const elem* k_tile = k_tiles + tile % STAGES * ROOM<BN>;
        const elem* v_tile = v_tiles + tile % STAGES * ROOM<BN>;
        float p[MT][NT][4], ds[MT][NT][4];
        products_begin();
        if constexpr (REGISTERS) rows_times_rows(p, q_rows, k_tile);
        else rows_times_rows<BM>(p, q_tile, at.own, k_tile);
        products_end();
        if constexpr (REGISTERS) rows_times_rows(ds, g_rows, v_tile);
        else rows_times_rows<BM>(ds, g_tile, at.own, v_tile);
        products_end();
        products_wait<1>(p);
        auto weigh = [&](auto partly) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        float& x = p[m][n][e];
                        if constexpr (partly.value)
                            x = scores.masked(x, at.first + at.own + 16 * m + at.group + e / 2 * 8, tile * BN + 8 * n + 2 * at.place + e % 2);
                        x = exp2_fast(x * FACTOR - level[m][e / 2]);
                    }
        };
        if (tile < at.whole) weigh(Flag<false>());  // in a branch, or the compiler would wait for dP first
        else weigh(Flag<true>());
        products_wait<0>(ds);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    Kept keep = {{true, true}};
                    if constexpr (DROPOUT)
                        keep = scores.kept_pair(at.first + at.own + 16 * m + at.group + 8 * half, tile * BN + 8 * n + 2 * at.place);
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float dp = keep.at[e] ? ds[m][n][2 * half + e] * (1.0f / (1.0f - DROP)) : 0.0f;
                        ds[m][n][2 * half + e] = p[m][n][2 * half + e] * (dp - drop[m][half]);
                    }
                }
        unsigned weights[MT][NT / 2][4];
        pack_weights(weights, ds);
        products_begin();
        add_weights_times_rows(sum, weights, k_tile);
        products_end();
        products_wait<0>(sum);
        if constexpr (REGISTERS) {
            keep(q_rows);
            keep(g_rows);
        }
    }

    copies_wait<0>();
    __syncthreads();
    dq += dq0 + at.b * dq_batch + at.h * dq_head + at.first * dq_row;
    write_rows<BM>(dq, dq_row, T - at.first, q_tile, at.own, sum, [](int, int) { return SCALE; });
}
