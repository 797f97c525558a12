// Products of tiles on the tensor cores: each warp sums a WM by WN part in the fragments of mma.sync.

constexpr int DEPTH = 32 / sizeof(elem);  // of one instruction

#ifndef TT_EMULATE
__device__ __forceinline__ unsigned to_tf32(unsigned x) { asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(x)); return x; }
__device__ __forceinline__ void mma_16x8x8(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else  // ten bits of fraction, halves away from zero; products of what the lanes show each other
__device__ __forceinline__ unsigned to_tf32(unsigned x) { return (x & 0x7f800000) == 0x7f800000 ? x : (x + 0x1000) & 0xffffe000; }
static TT_PLAIN void mma_16x8x8(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned group = tt_lane() / 4, place = tt_lane() % 4;
    float rows[2][8], columns[2][8];
    for (int half = 0; half < 2; ++half) {  // columns 0..3 of a, then 4..7; rows group and group + 8
        const uint64_t* seen = tt_show(a[2 * half] | (uint64_t)a[2 * half + 1] << 32);
        for (int k = 0; k < 4; ++k)
            for (int r = 0; r < 2; ++r) rows[r][4 * half + k] = __uint_as_float((unsigned)(seen[4 * group + k] >> 32 * r));
    }
    const uint64_t* seen = tt_show(b0 | (uint64_t)b1 << 32);
    for (int k = 0; k < 8; ++k)
        for (int n = 0; n < 2; ++n) columns[n][k] = __uint_as_float((unsigned)(seen[4 * (2 * place + n) + k % 4] >> 32 * (k / 4)));
    for (int r = 0; r < 2; ++r)
        for (int n = 0; n < 2; ++n)
            for (int k = 0; k < 8; ++k) c[2 * r + n] += rows[r][k] * columns[n][k];
}
#endif

template <class E> __device__ __forceinline__ void add_product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, E e) {
    if constexpr (sizeof(E) == 2) mma_16x8x16(c, a, b0, b1, e);
    else mma_16x8x8(c, a, b0, b1);
}
__device__ __forceinline__ void round_all(unsigned (&x)[4]) {
    if constexpr (sizeof(elem) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = to_tf32(x[i]);
    }
}

__device__ __forceinline__ void before_the_barrier() {}
__device__ __forceinline__ void start(Sums&, const elem*, const elem*) {}
__device__ __forceinline__ void finish(Sums& s, const elem* a_tile, const elem* b_tile) {
    const int column = own_column();
#pragma unroll
    for (int k = 0; k < BK; k += DEPTH) {
        unsigned a[MT][4], b[NT / 2][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            if constexpr (A_DEEP) deep_matrices<BM, BK>(a[m], a_tile, own_row(m), k, true);
            else flat_matrices<BK, BM>(a[m], a_tile, k, own_row(m), true);
            round_all(a[m]);
        }
#pragma unroll
        for (int n = 0; n < NT / 2; ++n) {
            if constexpr (B_DEEP) deep_matrices<BN, BK>(b[n], b_tile, column + 16 * n, k, false);
            else flat_matrices<BK, BN>(b[n], b_tile, k, column + 16 * n, false);
            round_all(b[n]);
        }
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n) add_product(s.at[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], elem());
    }
}
