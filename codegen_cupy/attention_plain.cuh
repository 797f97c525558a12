// Attention for every type and layout, in ordinary arithmetic: float32 and float64, odd head sizes, strided rows.
// A block owns OWN rows (of the queries; of the keys for their gradients), RW per warp, and walks over 32 rows at a time of
// what they meet.  First each lane of a warp stands at one of these 32 and computes scores; then it stands at columns
// lane, lane + 32, ... of the result, and the weights come round by shuffles.
// PART 0: forward.  PART 1: gradients of keys and values.  PART 2: gradient of queries.
// The program writes before this text: elem, sum_elem (float or double), mask_elem, TO_ELEM; D, DV; the flags.

constexpr int WARPS = 8, RW = 4, OWN = WARPS * RW, THREADS = 32 * WARPS;
constexpr int CD = (D + 31) / 32, CV = (DV + 31) / 32;
constexpr int SHARED_BYTES = sizeof(sum_elem) * (OWN * D + (PART ? OWN * DV : 0) + 32 * (D + 1) + 32 * (DV + 1));
#define MINUS_INFINITY ((sum_elem)__int_as_float(0xff800000))

template <class T> __device__ __forceinline__ sum_elem wide(T x) {
    if constexpr (sizeof(T) == 2) return (sum_elem)to_float(x);
    else return (sum_elem)x;
}
struct Place { long long at, batch, head, row, column; };
__device__ __forceinline__ long long start_of(const Place& p, int b, int h) { return p.at + b * p.batch + h * p.head; }

template <int ROWS, int WIDTH, int PITCH>
__device__ __forceinline__ void load_rows(sum_elem* to, const elem* from, const Place& p, int first, int count) {
    for (int i = threadIdx.x; i < ROWS * WIDTH; i += THREADS) {
        int row = i / WIDTH, column = i % WIDTH;
        bool there = first + row < count;
        to[row * PITCH + column] = there ? wide(from[(long long)(first + row) * p.row + column * p.column]) : (sum_elem)0;
    }
}

__device__ __forceinline__ sum_elem larger(sum_elem a, sum_elem b) { return a > b ? a : b; }
__device__ __forceinline__ bool kept(long long seed, long long counter, long long i) {
    return (float)(philox(seed, counter + (i >> 2), i & 3) >> 8) * 5.9604644775390625e-08f >= (float)DROP;
}

template <class M> __device__ __forceinline__ void take_mask(const M* mask, long long at, sum_elem& s, bool& seen) {
    if constexpr (MASK == 1) seen = mask[at];
    else s += wide(mask[at]);
}

// The dot products of this warp's rows of one tile with row lane of another.
template <int WIDTH> __device__ __forceinline__ void dots(sum_elem (&to)[RW], const sum_elem* own, const sum_elem* met) {
    const sum_elem* x = own + threadIdx.x / 32 * RW * WIDTH;
    const sum_elem* y = met + threadIdx.x % 32 * (WIDTH + 1);
#pragma unroll
    for (int r = 0; r < RW; ++r) to[r] = 0;
    for (int d = 0; d < WIDTH; ++d)
#pragma unroll
        for (int r = 0; r < RW; ++r) to[r] += x[r * WIDTH + d] * y[d];
}

// sum[r] += sum over j of lane j's weight times row j of a tile, at this lane's columns.
template <int WIDTH, int C>
__device__ __forceinline__ void mix(sum_elem (&sum)[RW][C], const sum_elem (&weight)[RW], const sum_elem* met) {
    int lane = threadIdx.x % 32;
    for (int j = 0; j < 32; ++j) {
#pragma unroll
        for (int r = 0; r < RW; ++r) {
            sum_elem w = __shfl_sync(0xffffffffu, weight[r], j);
#pragma unroll
            for (int c = 0; c < C; ++c)
                if (32 * c + lane < WIDTH) sum[r][c] += w * met[j * (WIDTH + 1) + 32 * c + lane];
        }
    }
}

template <int WIDTH, int C> __device__ __forceinline__ void write_row(elem* to, const Place& p, int row, const sum_elem (&sum)[C], sum_elem factor) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < C; ++c)
        if (32 * c + lane < WIDTH) to[(long long)row * p.row + (32 * c + lane) * p.column] = TO_ELEM(sum[c] * factor);
}

#define PLACE(x) long long x##0, long long x##_batch, long long x##_head, long long x##_row, long long x##_column
#define OF(x) Place{x##0, x##_batch, x##_head, x##_row, x##_column}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(
#if PART == 0
    const elem* q, const elem* k, const elem* v, const mask_elem* mask, const long long* state, elem* out, sum_elem* lse,
#elif PART == 1
    const elem* g, const elem* q, const elem* k, const elem* v, const sum_elem* delta, const sum_elem* lse,
    const mask_elem* mask, const long long* state, elem* dk, elem* dv,
#else
    const elem* g, const elem* q, const elem* k, const elem* v, const sum_elem* delta, const sum_elem* lse,
    const mask_elem* mask, const long long* state, elem* dq,
#endif
    long long heads, long long group_size, long long rows, long long columns, long long shift,
#if PART
    PLACE(g_),
#endif
    PLACE(q_), PLACE(k_), PLACE(v_), PLACE(m_), long long state0,
#if PART == 0
    PLACE(out_), long long lse0
#elif PART == 1
    long long delta0, long long lse0, PLACE(dk_), PLACE(dv_)
#else
    long long delta0, long long lse0, PLACE(dq_)
#endif
) {
    SHARED_POOL(pool, SHARED_BYTES);
    sum_elem* own_1 = (sum_elem*)pool;              // Q, or K for gradients of keys
    sum_elem* own_2 = own_1 + OWN * D;              // G, or V
    sum_elem* met_1 = own_2 + (PART ? OWN * DV : 0);  // K, or Q
    sum_elem* met_2 = met_1 + 32 * (D + 1);         // V, or G
    const int T = (int)rows, S = (int)columns, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own_heads = PART == 1 ? (int)(heads / group_size) : (int)heads;
    const int b = blockIdx.x / own_heads, own_head = blockIdx.x % own_heads, first = blockIdx.y * OWN;
    const int own_count = PART == 1 ? S : T, met_count = PART == 1 ? T : S;
    const Place pq = OF(q_), pk = OF(k_), pv = OF(v_), pm = OF(m_);
    long long seed = 0, counter = 0;
    if constexpr (DROPOUT) { seed = state[state0]; counter = state[state0 + 1] + shift; }
#if PART
    const Place pg = OF(g_);
    lse += lse0 + b * heads * T;
    delta += delta0 + b * heads * T;
#endif

    sum_elem sum_1[RW][CD] = {}, sum_2[RW][CV] = {};  // of the width of Q and K; of V
#if PART == 0
    sum_elem peak[RW], total[RW] = {};
#pragma unroll
    for (int r = 0; r < RW; ++r) peak[r] = MINUS_INFINITY;
#endif
    const int visits = PART == 1 ? (int)group_size : 1;
    for (int visit = 0; visit < visits; ++visit) {
        const int h = PART == 1 ? own_head * (int)group_size + visit : own_head, kv = h / (int)group_size;
        const elem* q_rows = q + start_of(pq, b, h);
        const elem* k_rows = k + start_of(pk, b, kv);
        const elem* v_rows = v + start_of(pv, b, kv);
        if (visit == 0) {
            load_rows<OWN, D, D>(own_1, PART == 1 ? k_rows : q_rows, PART == 1 ? pk : pq, first, own_count);
#if PART == 1
            load_rows<OWN, DV, DV>(own_2, v_rows, pv, first, own_count);
#elif PART == 2
            load_rows<OWN, DV, DV>(own_2, g + start_of(pg, b, h), pg, first, own_count);
#endif
        }
        const int begin = CAUSAL && PART == 1 ? first / 32 * 32 : 0;
        const int end = CAUSAL && PART != 1 && first + OWN < met_count ? first + OWN : met_count;
        for (int at = begin; at < end; at += 32) {
            __syncthreads();
            load_rows<32, D, D + 1>(met_1, PART == 1 ? q_rows : k_rows, PART == 1 ? pq : pk, at, met_count);
#if PART == 1
            load_rows<32, DV, DV + 1>(met_2, g + start_of(pg, b, h), pg, at, met_count);
#else
            load_rows<32, DV, DV + 1>(met_2, v_rows, pv, at, met_count);
#endif
            __syncthreads();
            sum_elem s[RW], weight[RW], ds[RW];
            dots<D>(s, own_1, met_1);
#if PART
            dots<DV>(ds, own_2, met_2);
#endif
#pragma unroll
            for (int r = 0; r < RW; ++r) {
                const int mine = first + warp * RW + r, other = at + lane;
                const int row = PART == 1 ? other : mine, column = PART == 1 ? mine : other;
                bool seen = row < T && column < S && (!CAUSAL || column <= row);
                s[r] *= (sum_elem)SCALE;
                if (MASK && seen) take_mask(mask, start_of(pm, b, h) + row * pm.row + column * pm.column, s[r], seen);
                s[r] = seen ? s[r] : MINUS_INFINITY;
                const bool keep = !DROPOUT || kept(seed, counter, ((b * heads + h) * T + row) * S + column);
#if PART == 0
                sum_elem top = larger(peak[r], warp_reduce<32>(s[r], Greatest<sum_elem>()));
                sum_elem level = top == MINUS_INFINITY ? (sum_elem)0 : top, fade = exp(peak[r] - level), p = exp(s[r] - level);
                peak[r] = top;
                total[r] = total[r] * fade + warp_reduce<32>(p, Sum<sum_elem>());
                weight[r] = keep ? p : (sum_elem)0;
#pragma unroll
                for (int c = 0; c < CV; ++c) sum_2[r][c] *= fade;
#else
                sum_elem level = row < T ? lse[(long long)h * T + row] : (sum_elem)0;
                sum_elem p = level == MINUS_INFINITY || !seen ? (sum_elem)0 : exp(s[r] - level);
                sum_elem factor = keep ? (sum_elem)1 / (1 - (sum_elem)DROP) : (sum_elem)0;
                weight[r] = p * factor;
                ds[r] = p * (ds[r] * factor - (row < T ? delta[(long long)h * T + row] : (sum_elem)0));
#endif
            }
#if PART != 2
            mix<DV>(sum_2, weight, met_2);
#endif
#if PART
            mix<D>(sum_1, ds, met_1);
#endif
        }
    }
#pragma unroll
    for (int r = 0; r < RW; ++r) {
        const int row = first + warp * RW + r;
        if (row >= own_count) continue;
#if PART == 0
        if (lane == 0) lse[lse0 + (long long)(b * heads + own_head) * T + row] = (peak[r] == MINUS_INFINITY ? (sum_elem)0 : peak[r]) + log(total[r]);
        sum_elem share = total[r] == (sum_elem)0 ? (sum_elem)0 : (sum_elem)1 / (total[r] * (1 - (sum_elem)DROP));
        write_row<DV>(out + start_of(OF(out_), b, own_head), OF(out_), row, sum_2[r], share);
#elif PART == 1
        write_row<D>(dk + start_of(OF(dk_), b, own_head), OF(dk_), row, sum_1[r], (sum_elem)SCALE);
        write_row<DV>(dv + start_of(OF(dv_), b, own_head), OF(dv_), row, sum_2[r], (sum_elem)1);
#else
        write_row<D>(dq + start_of(OF(dq_), b, own_head), OF(dq_), row, sum_1[r], (sum_elem)SCALE);
#endif
    }
}
