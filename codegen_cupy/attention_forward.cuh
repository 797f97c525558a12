// Attention forward (FlashAttention-2 and 3, Dao, 2023; Shah et al., 2024).  A block of WARPS warps owns BM = 16 MT WARPS
// rows of one head; it walks over the columns, BN at a time, K and V arriving STAGES - 1 tiles ahead.  Each warp keeps its
// rows' running maximum, sum and output in registers, so the warps meet only at the arrival of tiles.
// AHEAD: the scores of a tile are begun before the weights of the tile before are multiplied by V, so that the tensor cores
// work while these warps are at the exponentials; V then arrives one tile after K.

constexpr int BM = 16 * MT * WARPS, BN = OTHER, NT = BN / 8, LATE = AHEAD ? 1 : 0;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) KERNEL(
    const elem* q, const elem* k, const elem* v, const mask_elem* mask, const long long* state, elem* out, float* lse,
    SIZES, PLACE(q), PLACE(k), PLACE(v), MASK_AND_STATE, PLACE(o), long long lse0) {
    SHARED_POOL(pool, (ROOM<BM> + 2 * STAGES * ROOM<BN>) * 2);
    elem* q_tile = (elem*)pool;
    elem* k_tiles = q_tile + ROOM<BM>;
    elem* v_tiles = k_tiles + STAGES * ROOM<BN>;
    const int T = (int)rows, S = (int)columns;
    const Walk<BM, BN> at((int)heads, (int)group_size, S);
    const auto scores = SCORES_OF(at.b, at.h);
    q += q0 + at.b * q_batch + at.h * q_head + at.first * q_row;
    k += k0 + at.b * k_batch + at.kv * k_head;
    v += v0 + at.b * v_batch + at.kv * v_head;

    auto ask = [&](int tile) {  // one after another: k and v move on
        int late = tile - LATE;
        if (tile < at.tiles) {
            ask_tile<BN>(k_tiles + tile % STAGES * ROOM<BN>, k, k_row, S - tile * BN);
            k += BN * k_row;
        }
        if (late >= 0 && late < at.tiles) {
            ask_tile<BN>(v_tiles + late % STAGES * ROOM<BN>, v, v_row, S - late * BN);
            v += BN * v_row;
        }
        copies_end_group();
    };
    ask_tile<BM>(q_tile, q, q_row, T - at.first);
    for (int tile = 0; tile < STAGES - 1 + LATE; ++tile) ask(tile);

    float mixed[MT][DP / 8][4], s[MT][NT][4], peak[MT][2], total[MT][2], fade[MT][2];
    unsigned q_rows[MT][DEEP][4], weights[MT][NT / 2][4];  // q_rows: unused unless REGISTERS
    clear(mixed);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
        peak[m][0] = peak[m][1] = MINUS_INFINITY;
        total[m][0] = total[m][1] = 0.0f;
    }

    auto score = [&](int tile) {
        const elem* k_tile = k_tiles + tile % STAGES * ROOM<BN>;
        products_begin();
        if constexpr (REGISTERS) rows_times_rows(s, q_rows, k_tile);
        else rows_times_rows<BM>(s, q_tile, at.own, k_tile);
        products_end();
    };
    auto soften = [&](int tile, auto partly) {  // the running softmax; partly: some scores do not exist
        if constexpr (partly.value) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        s[m][n][e] = scores.masked(s[m][n][e], at.first + at.own + 16 * m + at.group + e / 2 * 8,
                                                   tile * BN + 8 * n + 2 * at.place + e % 2);
        }
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
        if constexpr (DROPOUT) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        Kept keep = scores.kept_pair(at.first + at.own + 16 * m + at.group + 8 * half, tile * BN + 8 * n + 2 * at.place);
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            if (!keep.at[e]) s[m][n][2 * half + e] = 0.0f;
                    }
        }
    };
    auto take = [&]() {  // once nobody is at `mixed` and `weights` any more
        bool rises = false;
#pragma unroll
        for (int m = 0; m < MT; ++m) rises |= fade[m][0] != 1.0f || fade[m][1] != 1.0f;
        if (__any_sync(0xffffffffu, rises)) {  // seldom, after the first tiles
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int n = 0; n < DP / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) mixed[m][n][e] *= fade[m][e / 2];
        }
        pack_weights(weights, s);
    };
    auto mix = [&](int tile) {
        products_begin();
        add_weights_times_rows(mixed, weights, v_tiles + tile % STAGES * ROOM<BN>);
        products_end();
    };

    if constexpr (AHEAD || REGISTERS) meet_copies<STAGES - 2 + LATE>();
    if constexpr (REGISTERS) rows_of<BM>(q_rows, q_tile, at.own);
    if constexpr (AHEAD) {
        score(0);
        products_wait<0>(s);
        soften(0, Flag<true>());
    }
    for (int tile = 0; tile < at.tiles; ++tile) {
        if constexpr (AHEAD) {
            if (tile < at.mine) {  // The compiler would move this wait up to the one for the scores, if no branch lay between.
                products_wait<0>(mixed);
                take();
            }
        }
        meet_copies<STAGES - 2>();
        ask(tile + STAGES - 1 + LATE);  // into the slots that all have left
        if constexpr (AHEAD) {
            auto next = [&](auto partly) {
                score(tile + 1);
                mix(tile);
                products_wait<1>(s);
                if constexpr (REGISTERS) keep(q_rows);
                soften(tile + 1, partly);
            };
            if (tile + 1 < at.whole) {  // a branch of its own, in which products and exponentials can be mixed
                next(Flag<false>());
            } else if (tile + 1 < at.mine) {
                next(Flag<true>());
            } else if (tile < at.mine) {
                mix(tile);
                products_wait<0>(mixed);
            }
        } else {
            auto whole = [&](auto partly) {
                score(tile);
                products_wait<0>(s);
                if constexpr (REGISTERS) keep(q_rows);
                soften(tile, partly);
                take();
                mix(tile);
                products_wait<0>(mixed);
            };
            if (tile < at.whole) whole(Flag<false>());
            else if (tile < at.mine) whole(Flag<true>());
        }
    }

    out += o0 + at.b * o_batch + at.h * o_head + at.first * o_row;
    lse += lse0 + (long long)blockIdx.x * T + at.first;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float& sum = total[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int row = at.own + 16 * m + 8 * half + at.group;
            float level = peak[m][half] == MINUS_INFINITY ? 0.0f : peak[m][half] * FACTOR;
            if (at.place == 0 && at.first + row < T) lse[row] = level * LN2 + logf(sum);  // minus infinity if nothing was seen
        }
    write_rows<BM>(out, o_row, T - at.first, q_tile, at.own, mixed, [&](int m, int half) {
        return total[m][half] == 0.0f ? 0.0f : 1.0f / (total[m][half] * (1.0f - DROP));
    });
}
