// Attention backward, the gradients of keys and values.  A block of warps owns BN = 16 MT WARPS columns of the scores
// (rows of K and V) of one head of keys; it walks over the rows that see them, OTHER at a time, Q and G (the cotangent of
// the output) arriving STAGES - 1 tiles ahead, for each head of queries that shares these keys.
// Everything is turned: a warp computes S^T = K Q^T and P^T = exp(S^T - lse), whose layout in registers is already that of
// the operand in  dV += P^T G  and, with dP^T = V G^T and dS^T = P^T (dP^T - delta), in  dK += dS^T Q.  So weights never
// pass through shared memory, nothing is summed across blocks, and the result does not depend on timing.
// With ATOMIC also the gradient of queries comes from here: dS goes through shared memory, so that each warp can take
// its part of  dQ += dS K  over all columns of the block, added atomically to a float32 buffer that all blocks share.

constexpr int BN = 16 * MT * WARPS, BM = OTHER, NT = BM / 8;
constexpr int DS_PITCH = BM + 8;
constexpr int SHARED_BYTES = (2 * BN + 2 * STAGES * BM) * PITCH * 2 + 2 * STAGES * BM * 4 + ATOMIC * BN * DS_PITCH * 2;
#if ATOMIC
constexpr int ROW_PARTS = BM / 16, COLUMN_PARTS = WARPS / ROW_PARTS, QT = DP / COLUMN_PARTS / 8;
static_assert(WARPS % ROW_PARTS == 0 && QT % 2 == 0, "warps share the tile of dQ evenly");
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* g, const elem* q, const elem* k, const elem* v, const float* delta, const float* lse,
    const mask_elem* mask, const long long* state, elem* dk, elem* dv,
#if ATOMIC
    float* dq_sum,
#endif
    long long heads, long long group_size, long long rows, long long columns, long long shift,
    long long g0, long long g_batch, long long g_head, long long g_row,
    long long q0, long long q_batch, long long q_head, long long q_row,
    long long k0, long long k_batch, long long k_head, long long k_row,
    long long v0, long long v_batch, long long v_head, long long v_row,
    long long delta0, long long lse0,
    long long m0, long long m_batch, long long m_head, long long m_row, long long m_column, long long state0,
    long long dk0, long long dk_batch, long long dk_head, long long dk_row,
    long long dv0, long long dv_batch, long long dv_head, long long dv_row) {
    SHARED_POOL(pool, SHARED_BYTES);
    elem* k_tile = (elem*)pool;
    elem* v_tile = k_tile + BN * PITCH;
    elem* q_tiles = v_tile + BN * PITCH;
    elem* g_tiles = q_tiles + STAGES * BM * PITCH;
    float* lse_tiles = (float*)(g_tiles + STAGES * BM * PITCH);
    float* delta_tiles = lse_tiles + STAGES * BM;
    elem* ds_tile = (elem*)(delta_tiles + STAGES * BM);  // turned: a row per column of scores; only with ATOMIC
    const int T = (int)rows, S = (int)columns, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const int key_heads = (int)(heads / group_size), first = blockIdx.y * BN, own = warp * 16 * MT;
    const int b = blockIdx.x / key_heads, kv = blockIdx.x % key_heads;
    k += k0 + b * k_batch + kv * k_head + first * k_row;
    v += v0 + b * v_batch + kv * v_head + first * v_row;
    q += q0 + b * q_batch;
    g += g0 + b * g_batch;
    lse += lse0 + b * heads * T;
    delta += delta0 + b * heads * T;
    const int start = CAUSAL ? smaller(first, T) / BM : 0, per_head = (T + BM - 1) / BM - start;
    const int tiles = per_head * (int)group_size;
    const int whole = !CAUSAL ? 0 : (first + BN - 1 + BM - 1) / BM - start;  // causal: tiles of a head from here on need no mask
    long long seed = 0, counter = 0;
    if constexpr (DROPOUT) { seed = state[state0]; counter = state[state0 + 1] + shift; }

    auto ask = [&](int tile) {
        if (tile < tiles) {
            int slot = tile % STAGES, h = kv * (int)group_size + tile / per_head, at = (start + tile % per_head) * BM;
            ask_tile<BM>(q_tiles + slot * BM * PITCH, q + h * q_head + at * q_row, q_row, T - at);
            ask_tile<BM>(g_tiles + slot * BM * PITCH, g + h * g_head + at * g_row, g_row, T - at);
            for (int i = threadIdx.x; i < 2 * BM; i += THREADS) {
                bool there = at + i % BM < T;
                const float* from = (i < BM ? lse : delta) + (long long)h * T + (there ? at + i % BM : 0);
                copy_4((i < BM ? lse_tiles : delta_tiles) + slot * BM + i % BM, from, there);
            }
        }
        copies_end_group();
    };
    ask_tile<BN>(k_tile, k, k_row, S - first);
    ask_tile<BN>(v_tile, v, v_row, S - first);
    for (int tile = 0; tile < STAGES - 1; ++tile) ask(tile);

    float sum_k[MT][DP / 8][4], sum_v[MT][DP / 8][4];
    unsigned k_rows[MT][DP / 16][4], v_rows[MT][DP / 16][4];  // unused unless REGISTERS
    clear(sum_k);
    clear(sum_v);

    for (int tile = 0; tile < tiles; ++tile) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        ask(tile + STAGES - 1);
        const int slot = tile % STAGES, h = kv * (int)group_size + tile / per_head, within = tile % per_head;
        const int at = (start + within) * BM;
        const elem* q_tile = q_tiles + slot * BM * PITCH;
        const elem* g_tile = g_tiles + slot * BM * PITCH;
        const Pack<float, 2>* lse_tile = (const Pack<float, 2>*)(lse_tiles + slot * BM);
        const Pack<float, 2>* delta_tile = (const Pack<float, 2>*)(delta_tiles + slot * BM);

        float p[MT][NT][4];
        clear(p);
        if constexpr (REGISTERS) {
            if (tile == 0) {
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int step = 0; step < DP / 16; ++step) {
                        rows_of(k_rows[m][step], k_tile, own + 16 * m, step);
                        rows_of(v_rows[m][step], v_tile, own + 16 * m, step);
                    }
            }
            add_rows_times_rows(p, k_rows, q_tile);
        } else {
            add_rows_times_rows(p, k_tile, own, q_tile);
        }
        if (MASK || within < whole || (ATOMIC && first + BN > S)) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        int column = first + own + 16 * m + group + e / 2 * 8, row = at + 8 * n + 2 * place + e % 2;
                        bool seen = (!MASK || row < T) && (!(MASK || ATOMIC) || column < S) && (!CAUSAL || column <= row);
                        long long where = MASK ? m0 + b * m_batch + h * m_head + row * m_row + column * m_column : 0;
                        p[m][n][e] = masked(p[m][n][e], mask, where, seen);
                    }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            Pack<float, 2> level = lse_tile[4 * n + place];
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
        auto keep = [&](int m, int n, int e) {
            long long row = (long long)(b * heads + h) * T + at + 8 * n + 2 * place + e % 2;
            return kept_one(seed, counter, row * S + first + own + 16 * m + group + e / 2 * 8);
        };
        float ds[MT][NT][4];
        if constexpr (DROPOUT) {  // the sign carries what dropout says until ds is made
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        bool kept = keep(m, n, e);
                        ds[m][n][e] = kept ? p[m][n][e] : 0.0f;
                        p[m][n][e] = kept ? p[m][n][e] : -p[m][n][e];
                    }
            add_weights_times_rows(sum_v, ds, g_tile);
        } else {
            add_weights_times_rows(sum_v, p, g_tile);
        }
        clear(ds);
        if constexpr (REGISTERS) add_rows_times_rows(ds, v_rows, g_tile);
        else add_rows_times_rows(ds, v_tile, own, g_tile);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            Pack<float, 2> d = delta_tile[4 * n + place];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float weight = DROPOUT ? fabs(p[m][n][e]) : p[m][n][e];
                    float dp = DROPOUT ? (p[m][n][e] < 0.0f ? 0.0f : ds[m][n][e] * (1.0f / (1.0f - DROP))) : ds[m][n][e];
                    ds[m][n][e] = weight * (dp - d.at[e % 2]);
                }
        }
#if ATOMIC
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *(unsigned*)(ds_tile + (own + 16 * m + 8 * half + group) * DS_PITCH + 8 * n + 2 * place) =
                        pack_pair(ds[m][n][2 * half], ds[m][n][2 * half + 1], elem());
#endif
        add_weights_times_rows(sum_k, ds, q_tile);
#if ATOMIC
        __syncthreads();
        float dq[QT][4];
#pragma unroll
        for (int n = 0; n < QT; ++n) dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
        const int row_part = warp % ROW_PARTS * 16, column_part = warp / ROW_PARTS * QT * 8;
        const elem* ds_at = ds_tile + (lane % 8 + lane / 16 * 8) * DS_PITCH + row_part + lane / 8 % 2 * 8;
        const elem* k_at = k_tile + lane % 16 * PITCH + column_part + lane / 16 * 8;
#pragma unroll
        for (int step = 0; step < BN / 16; ++step) {
            unsigned x[4];
            load_matrices_turned(x, ds_at + step * 16 * DS_PITCH);
#pragma unroll
            for (int n = 0; n < QT; n += 2) {
                unsigned y[4];
                load_matrices_turned(y, k_at + step * 16 * PITCH + n * 8);
                mma_16x8x16(dq[n], x, y[0], y[1], elem());
                mma_16x8x16(dq[n + 1], x, y[2], y[3], elem());
            }
        }
        // Two lanes that stand side by side exchange halves: each then has four neighbours of one row.
        const int row = at + row_part + group + place % 2 * 8;
        float* to = dq_sum + ((b * heads + h) * T + row) * D + column_part + place / 2 * 4;
#pragma unroll
        for (int n = 0; n < QT; ++n) {
            bool low = place % 2 == 0;
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
    write_rows<MT>(dk, dk_row, S - first, k_tile, own, sum_k, [](int, int) { return SCALE; });
    write_rows<MT>(dv, dv_row, S - first, v_tile, own, sum_v, [](int, int) { return 1.0f / (1.0f - DROP); });
}
