// The float32 sums of dQ, contiguous over (batch, heads, rows, D), scaled and rounded into place: eight elements a thread.

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(
    const float* sum, elem* dq, long long heads, long long rows, long long count,
    long long dq0, long long dq_batch, long long dq_head, long long dq_row) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const long long line = i / (D / 8), row = line % rows, bh = line / rows;
    const int column = (int)(i % (D / 8)) * 8;
    const Pack<float, 8> x = load_pack<8>(sum + i * 8);
    unsigned y[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) y[n] = pack_pair(x.at[2 * n] * SCALE, x.at[2 * n + 1] * SCALE, elem());
    elem* to = dq + dq0 + bh / heads * dq_batch + bh % heads * dq_head + row * dq_row + column;
    *(Pack<unsigned, 4>*)to = Pack<unsigned, 4>{{y[0], y[1], y[2], y[3]}};
}
