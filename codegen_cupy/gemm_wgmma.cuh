// Products of tiles by groups of four warps (wgmma, Hopper).  The tensor cores read the right operand, and a left one that
// lies along the depth, from shared memory by themselves, and work while the threads fetch the tiles of a later step.

static_assert(BK == 64 && WN % 64 == 0 && WARPS_M % 4 == 0, "tiles are made of panels, 64 elements wide");

__device__ __forceinline__ void before_the_barrier() { wgmma_sees_shared(); }

// 64 rows times all columns of the group, one step of 16; `left` is a panel, or a warp's rows in registers.
template <int FROM, class Left>
__device__ __forceinline__ void add_columns(float (&c)[NT][4], const Left& left, const elem* b_tile, int step) {
    if constexpr (FROM < NT) {
        const int column = own_column() + 8 * FROM;
        wgmma_64x64x16<!B_DEEP, FROM, false>(c, left, b_tile + (B_DEEP ? column * 64 : column / 64 * (BK * 64)), step);
        add_columns<FROM + 8>(c, left, b_tile, step);
    }
}

__device__ __forceinline__ void start(Sums& s, const elem* a_tile, const elem* b_tile) {
    unsigned a[MT][BK / 16][4];
    if constexpr (!A_DEEP) {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int step = 0; step < BK / 16; ++step) flat_matrices<BK, BM>(a[m][step], a_tile, 16 * step, own_row(m), true);
    }
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < BK / 16; ++step)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            if constexpr (A_DEEP) add_columns<0>(s.at[m], a_tile + own_row(m) / 64 * 4096, b_tile, step);
            else add_columns<0>(s.at[m], a[m][step], b_tile, step);
        }
    wgmma_end();
}

__device__ __forceinline__ void finish(Sums& s, const elem*, const elem*) {
#pragma unroll
    for (int m = 0; m < MT; ++m) wgmma_wait<0>(s.at[m]);
}
