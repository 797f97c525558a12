// D = A @ B, a tile of D per block.  The tiles of A and B that a block needs go through a ring of STAGES slots in shared
// memory, STAGES - 1 steps of depth BK ahead of the products, which gemm_tensor.cuh, gemm_wgmma.cuh or gemm_plain.cuh sum in
// registers (`start` and `finish`; what is fetched in between arrives meanwhile).

// The tile of D that this block makes.  Blocks that run together make neighbouring tiles, eight rows of them at a time,
// and find each other's operands in the cache.
struct Corner { int row, column; };
__device__ __forceinline__ Corner corner(int M, int N) {
    const int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN, band = blockIdx.x / (8 * across) * 8;
    const int high = down - band < 8 ? down - band : 8, in_band = blockIdx.x - band * across;
    return {(band + in_band % high) * BM, in_band / high * BN};
}

// sums += A @ B over `steps` steps of the depth.
template <class A, class B>
__device__ __forceinline__ void sum_products(Sums& sums, elem* pool, A& a, B& b, int steps) {
    elem *a_tiles = pool, *b_tiles = pool + STAGES * A_TILE;
#pragma unroll 1  // a fetch is long where elements are gathered
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) {
            a.fetch(a_tiles + s * A_TILE);
            b.fetch(b_tiles + s * B_TILE);
            a.deliver(a_tiles + s * A_TILE);
            b.deliver(b_tiles + s * B_TILE);
        }
        copies_end_group();
    }
    int now = 0, next = STAGES - 1;  // slots
    for (int step = 0; step < steps; ++step) {
        copies_wait<STAGES - 2>();
        before_the_barrier();
        __syncthreads();
        start(sums, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
        const bool more = step + STAGES - 1 < steps;
        if (more) {  // into the slot that all have left
            a.fetch(a_tiles + next * A_TILE);
            b.fetch(b_tiles + next * B_TILE);
        }
        copies_end_group();
        finish(sums, a_tiles + now * A_TILE, b_tiles + now * B_TILE);
        if (more) {
            a.deliver(a_tiles + next * A_TILE);
            b.deliver(b_tiles + next * B_TILE);
        }
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    __syncthreads();  // the ring's memory is free for what follows
}
