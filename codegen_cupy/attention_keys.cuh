// Attention backward, the gradients of keys and values.  A block of warps owns BN = 16 MT WARPS columns of the scores
// (rows of K and V) of one head of keys; it walks over the rows that see them, OTHER at a time, Q and G (the cotangent of
// the output) arriving STAGES - 1 tiles ahead, for each head of queries that shares these keys.
// Everything is turned: a warp computes S^T = K Q^T and P^T = exp(S^T - lse), whose layout in registers is already that of
// the operand in  dV += P^T G  and, with dP^T = V G^T and dS^T = P^T (dP^T - delta), in  dK += dS^T Q.  So weights never
// pass through shared memory, nothing is summed across blocks, and the result does not depend on timing.
// With ATOMIC also the gradient of queries comes from here: dS goes through shared memory, so that each warp can take
// its part of  dQ += dS K  over all columns of the block, added atomically to a float32 buffer that all blocks share.

constexpr int BN = 16 * MT * WARPS, BM = OTHER, NT = BM / 8;
#if ATOMIC
constexpr int DS_PITCH = BM + 8, ROW_PARTS = BM / 16, COLUMN_PARTS = WARPS / ROW_PARTS, QT = DP / COLUMN_PARTS / 8;
static_assert(WARPS % ROW_PARTS == 0 && QT % 2 == 0, "warps share the tile of dQ evenly");
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* g, const elem* q, const elem* k, const elem* v, const float* delta, const float* lse,
    const mask_elem* mask, const long long* state, elem* dk, elem* dv,
#if ATOMIC
    float* dq_sum,
#endif
    SIZES, PLACE(g), PLACE(q), PLACE(k), PLACE(v), long long delta0, long long lse0, MASK_AND_STATE, PLACE(dk), PLACE(dv)) {
    SHARED_POOL(pool, (2 * ROOM<BN> + 2 * STAGES * ROOM<BM>) * 2 + 2 * STAGES * BM * 4 + ATOMIC * BN * (BM + 8) * 2);
    elem* k_tile = (elem*)pool;
    elem* v_tile = k_tile + ROOM<BN>;
    elem* q_tiles = v_tile + ROOM<BN>;
    elem* g_tiles = q_tiles + STAGES * ROOM<BM>;
    float* lse_tiles = (float*)(g_tiles + STAGES * ROOM<BM>);
    float* delta_tiles = lse_tiles + STAGES * BM;
    elem* ds_tile = (elem*)(delta_tiles + STAGES * BM);  // turned: a row per column of scores; only with ATOMIC
    const int T = (int)rows, S = (int)columns, key_heads = (int)(heads / group_size), first = blockIdx.y * BN;
    const int b = blockIdx.x / key_heads, kv = blockIdx.x % key_heads;
    const Stand me;
    k += k0 + b * k_batch + kv * k_head + first * k_row;
    v += v0 + b * v_batch + kv * v_head + first * v_row;
    const int start = CAUSAL ? smaller(first, T) / BM : 0, per_head = (T + BM - 1) / BM - start;
    const int tiles = per_head * (int)group_size;
    // Causal: tiles of a head before the first one concern other warps only; those from the second one on need no mask.
    const int skipped = CAUSAL ? (first + me.unit) / BM - start : 0;
    const int whole = CAUSAL ? (first + me.unit + me.unit_rows - 1 + BM - 1) / BM - start : 0;

    q += q0 + b * q_batch + kv * group_size * q_head + start * BM * q_row;
    g += g0 + b * g_batch + kv * group_size * g_head + start * BM * g_row;
    lse += lse0;
    delta += delta0;

    long long line = (b * heads + kv * group_size) * rows + start * BM;  // first row of the tile, among those of all heads
    int asked = 0;                                                       // tiles of the current head
    auto ask = [&](int tile) {                                           // one after another: q, g and line move on
        if (tile < tiles) {
            const int slot = tile % STAGES, left = T - (start + asked) * BM;
            ask_tile<BM>(q_tiles + slot * ROOM<BM>, q, q_row, left);
            ask_tile<BM>(g_tiles + slot * ROOM<BM>, g, g_row, left);
            for (int i = threadIdx.x; i < 2 * BM; i += THREADS) {
                bool there = i % BM < left;
                copy_4((i < BM ? lse_tiles : delta_tiles) + slot * BM + i % BM, (i < BM ? lse : delta) + line + (there ? i % BM : 0), there);
            }
            const bool next = ++asked == per_head;
            if (next) asked = 0;
            q += next ? q_head - (per_head - 1) * BM * q_row : BM * q_row;
            g += next ? g_head - (per_head - 1) * BM * g_row : BM * g_row;
            line += next ? T - (per_head - 1) * BM : BM;
        }
        copies_end_group();
    };
    ask_tile<BN>(k_tile, k, k_row, S - first);
    ask_tile<BN>(v_tile, v, v_row, S - first);
    for (int tile = 0; tile < STAGES - 1; ++tile) ask(tile);

    float sum_k[MT][DP / 8][4], sum_v[MT][DP / 8][4];
    unsigned k_rows[MT][DEEP][4], v_rows[MT][DEEP][4];  // unused unless REGISTERS
    clear(sum_k);
    clear(sum_v);

    if constexpr (REGISTERS) {
        meet_copies<STAGES - 2>();
        rows_of<BN>(k_rows, k_tile, me.own);
        rows_of<BN>(v_rows, v_tile, me.own);
    }
    int h = kv * (int)group_size, within = -1;  // head of queries, number of the tile among its own
    for (int tile = 0; tile < tiles; ++tile) {
        meet_copies<STAGES - 2>();
        ask(tile + STAGES - 1);
        if (++within == per_head) within = 0, ++h;
        if (!ATOMIC && within < skipped) continue;
        const int slot = tile % STAGES, at = (start + within) * BM;
        const auto scores = SCORES_OF(b, h);
        const elem* q_tile = q_tiles + slot * ROOM<BM>;
        const elem* g_tile = g_tiles + slot * ROOM<BM>;
        const Pack<float, 2>* lse_tile = (const Pack<float, 2>*)(lse_tiles + slot * BM);
        const Pack<float, 2>* delta_tile = (const Pack<float, 2>*)(delta_tiles + slot * BM);

        float p[MT][NT][4], ds[MT][NT][4];
        unsigned weights[MT][NT / 2][4], changes[MT][NT / 2][4];  // P and dS
        auto weigh = [&]() {  // what the weights' gradients begin with
            if constexpr (REGISTERS) rows_times_rows(ds, v_rows, g_tile);
            else rows_times_rows<BN>(ds, v_tile, me.own, g_tile);
            products_end();
        };
        products_begin();
        if constexpr (REGISTERS) rows_times_rows(p, k_rows, q_tile);
        else rows_times_rows<BN>(p, k_tile, me.own, q_tile);
        products_end();
        if constexpr (GROUPS) weigh();  // early, behind the exponentials; a warp for itself has no registers for both
        products_wait<1>(p);
        if (MASK || within < whole || (ATOMIC && first + BN > S)) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        p[m][n][e] = scores.masked(p[m][n][e], at + 8 * n + 2 * me.place + e % 2,
                                                   first + me.own + 16 * m + me.group + e / 2 * 8);
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            Pack<float, 2> level = lse_tile[4 * n + me.place];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (MASK && level.at[e] == MINUS_INFINITY) level.at[e] = -level.at[e];  // sees nobody: weights of zero
                level.at[e] *= LOG2E;
            }
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) p[m][n][e] = exp2_fast(p[m][n][e] * FACTOR - level.at[e % 2]);
        }
        if constexpr (DROPOUT) {  // the sign carries what dropout says until ds is made
            float kept[MT][NT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        bool keep = scores.kept(at + 8 * n + 2 * me.place + e % 2, first + me.own + 16 * m + me.group + e / 2 * 8);
                        kept[m][n][e] = keep ? p[m][n][e] : 0.0f;
                        p[m][n][e] = keep ? p[m][n][e] : -p[m][n][e];
                    }
            pack_weights(weights, kept);
        } else {
            pack_weights(weights, p);
        }
        products_begin();
        add_weights_times_rows(sum_v, weights, g_tile);
        products_end();
        if constexpr (!GROUPS) weigh();
        products_wait<1>(ds);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            Pack<float, 2> d = delta_tile[4 * n + me.place];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float weight = DROPOUT ? fabs(p[m][n][e]) : p[m][n][e];
                    float dp = DROPOUT ? (p[m][n][e] < 0.0f ? 0.0f : ds[m][n][e] * (1.0f / (1.0f - DROP))) : ds[m][n][e];
                    ds[m][n][e] = weight * (dp - d.at[e % 2]);
                }
        }
        pack_weights(changes, ds);
#if ATOMIC
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < NT / 2 * 4; ++i)
                *(unsigned*)(ds_tile + (me.own + 16 * m + i % 2 * 8 + me.group) * DS_PITCH + i / 2 * 8 + 2 * me.place) = changes[m][i / 4][i % 4];
#endif
        products_begin();
        add_weights_times_rows(sum_k, changes, q_tile);
        products_end();
        products_wait<0>(sum_v);
        products_wait<0>(sum_k);
        if constexpr (REGISTERS) {
            keep(k_rows);
            keep(v_rows);
        }
#if ATOMIC
        __syncthreads();
        float dq[QT][4];
#pragma unroll
        for (int n = 0; n < QT; ++n) dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
        const int row_part = me.warp % ROW_PARTS * 16, column_part = me.warp / ROW_PARTS * QT * 8;
        const elem* ds_at = ds_tile + (me.lane % 8 + me.lane / 16 * 8) * DS_PITCH + row_part + me.lane / 8 % 2 * 8;
#pragma unroll
        for (int step = 0; step < BN / 16; ++step) {
            unsigned x[4];
            load_matrices_turned(x, ds_at + step * 16 * DS_PITCH);
#pragma unroll
            for (int n = 0; n < QT; n += 2) {
                unsigned y[4];
                load_matrices_turned(y, k_tile + spot<BN>(16 * step + me.lane % 16, column_part + 8 * n + me.lane / 16 * 8));
                mma_16x8x16(dq[n], x, y[0], y[1], elem());
                mma_16x8x16(dq[n + 1], x, y[2], y[3], elem());
            }
        }
        // Two lanes that stand side by side exchange halves: each then has four neighbours of one row.
        const int row = at + row_part + me.group + me.place % 2 * 8;
        float* to = dq_sum + ((b * heads + h) * T + row) * D + column_part + me.place / 2 * 4;
#pragma unroll
        for (int n = 0; n < QT; ++n) {
            bool low = me.place % 2 == 0;
            float x = __shfl_xor_sync(0xffffffffu, low ? dq[n][2] : dq[n][0], 1);
            float y = __shfl_xor_sync(0xffffffffu, low ? dq[n][3] : dq[n][1], 1);
            if (row < T && column_part + 8 * n < D) {
                if (low) add_4(to + 8 * n, dq[n][0], dq[n][1], x, y);
                else add_4(to + 8 * n, x, y, dq[n][2], dq[n][3]);
            }
        }
#endif
    }

    copies_wait<0>();
    __syncthreads();  // if there was no tile, K and V have only now arrived where results are written
    dk += dk0 + b * dk_batch + kv * dk_head + first * dk_row;
    dv += dv0 + b * dv_batch + kv * dv_head + first * dv_row;
    write_rows<BN>(dk, dk_row, S - first, k_tile, me.own, sum_k, [](int, int) { return SCALE; });
    write_rows<BN>(dv, dv_row, S - first, v_tile, me.own, sum_v, [](int, int) { return 1.0f / (1.0f - DROP); });
}
