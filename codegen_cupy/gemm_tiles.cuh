// Operands of D = A @ B, A (M, K), B (K, N), on their way to shared memory.  An operand lies in memory along the depth
// (DEEP: its lines are rows of A, columns of B) or across it (lines are steps of the depth); its tiles keep that order.
// The program writes before this text: elem (of the tiles), BM BN BK (a tile), WARPS_M WARPS_N, STAGES, A_DEEP B_DEEP.

constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;
constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // what one warp does of a tile
constexpr int CHUNK = 16 / sizeof(elem);             // elements in 16 bytes
constexpr int A_TILE = BM * BK, B_TILE = BN * BK, SUMS_PITCH = BN + 8;
constexpr int RING_BYTES = STAGES * (A_TILE + B_TILE) * (int)sizeof(elem), SUMS_BYTES = BM * SUMS_PITCH * 4;
constexpr int SHARED_BYTES = RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES;

// Where an element of a line lies in a tile: in panels of at most 128 bytes side by side, one line of a panel after the
// other.  Chunks of 16 bytes change places from line to line, so that eight lines' chunks of one column, which is what
// the products read at once, lie in all 32 banks.
template <int LINES, int LENGTH, bool DEEP>
__device__ __forceinline__ int spot(int line, int element) {
    constexpr int PANEL = LENGTH < 8 * CHUNK ? LENGTH : 8 * CHUNK, CHUNKS = PANEL / CHUNK;
    const int turn = CHUNKS == 4 ? line / 2 % 4 : CHUNKS == 2 ? line / 4 % 2 : DEEP || sizeof(elem) == 2 ? line % 8 : line % 4 * 2;
    return (element / PANEL * LINES + line) * PANEL + (element % PANEL / CHUNK ^ turn) * CHUNK + element % CHUNK;
}

// An operand whose lines can be copied 16 bytes at a time: they begin at, and have, multiples of 16 bytes.
template <int LINES, int LENGTH, bool DEEP> struct Copied {
    static constexpr int CHUNKS = LENGTH / CHUNK, APART = THREADS / CHUNKS, ROUNDS = LINES / APART;
    static_assert(THREADS % CHUNKS == 0 && LINES % APART == 0, "threads divide a tile evenly");
    const elem *from, *safe;
    const long long pitch;
    int lines, length;  // how many there are from this thread's first chunk on

    __device__ Copied(const elem* matrix, long long pitch, int line, int first, int lines, int length)
        : safe(matrix), pitch(pitch) {
        const int l = line + threadIdx.x / CHUNKS, e = first + threadIdx.x % CHUNKS * CHUNK;
        from = matrix + l * pitch + e;
        this->lines = lines - l;
        this->length = length - e;
    }
    // Ask for the tile that begins here, and move on along the depth.
    __device__ void fetch(elem* tile) {
        const int line = threadIdx.x / CHUNKS, e = threadIdx.x % CHUNKS * CHUNK;
        const elem* source = from;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const bool there = r * APART < lines && length > 0;
            copy_16(tile + spot<LINES, LENGTH, DEEP>(line + r * APART, e), there ? source : safe, there);
            source += APART * pitch;
        }
        from += DEEP ? LENGTH : LINES * pitch;
        (DEEP ? length : lines) -= DEEP ? LENGTH : LINES;
    }
    __device__ void deliver(elem*) {}
};

// Where an element lies, if it is there; else a place that may be read all the same.  Never null: ptxas (12.9 and 13.0) sets a
// null pointer by an instruction that takes longer than it allows for, so that a test right behind saw the pointer before it.
struct Found { const elem* at; bool there; };
__device__ __forceinline__ Found found(bool there, const elem* at, const elem* safe) { return {there ? at : safe, there}; }
__device__ __forceinline__ elem read(Found f) { return f.there ? *f.at : elem(); }

// An operand that is computed, or lies in memory in some other way: `From` knows the element at (line, place).  A warp
// takes whole lines, its lanes neighbouring places.  Elements wait in registers while the products of a step are made.
template <int LINES, int LENGTH, bool DEEP, class From> struct Gathered {
    static constexpr int PAIR = 4 / sizeof(elem), LANES = LENGTH / PAIR < 32 ? LENGTH / PAIR : 32, ACROSS = LENGTH / (LANES * PAIR);
    static constexpr int APART = WARPS * (32 / LANES), ROUNDS = LINES / APART;
    static_assert(LINES % APART == 0, "warps divide a tile evenly");
    struct Two { elem at[PAIR]; };
    const From from;
    int line, first;
    typename From::Place places[ACROSS * PAIR];
    Two held[ROUNDS][ACROSS];

    __device__ Gathered(const From& from, int line, int first) : from(from), line(line), first(first) { look(); }
    static __device__ int own_line() { return threadIdx.x / LANES; }
    static __device__ int own_place(int x) { return (threadIdx.x % LANES + LANES * x) * PAIR; }
    __device__ void look() {
#pragma unroll
        for (int i = 0; i < ACROSS * PAIR; ++i) places[i] = from.place(first + own_place(i / PAIR) + i % PAIR);
    }
    __device__ void fetch(elem* tile) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const auto l = from.line(line + own_line() + r * APART);
#pragma unroll
            for (int i = 0; i < ACROSS * PAIR; ++i) {
                if constexpr (From::MOVED && PAIR == 1) {  // nothing to compute: straight to where it belongs
                    const Found found = from.where(l, places[i]);
                    copy_4(tile + spot<LINES, LENGTH, DEEP>(own_line() + r * APART, own_place(i)), found.at, found.there);
                } else {
                    held[r][i / PAIR].at[i % PAIR] = from.at(l, places[i]);
                }
            }
        }
        (DEEP ? first : line) += DEEP ? LENGTH : LINES;
        if (DEEP) look();
    }
    __device__ void deliver(elem* tile) {
        if constexpr (!(From::MOVED && PAIR == 1)) {
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
                for (int x = 0; x < ACROSS; ++x)
                    *(Two*)(tile + spot<LINES, LENGTH, DEEP>(own_line() + r * APART, own_place(x))) = held[r][x];
        }
    }
};

// An operand of which `From` knows the place of every element, where CHUNK places from a multiple of CHUNK on lie side by
// side, at a multiple of 16 bytes, or are all missing.
template <int LINES, int LENGTH, bool DEEP, class From> struct Chunked {
    static constexpr int CHUNKS = LENGTH / CHUNK, APART = THREADS / CHUNKS, ROUNDS = LINES / APART;
    static_assert(THREADS % CHUNKS == 0 && LINES % APART == 0, "threads divide a tile evenly");
    const From from;
    int line, first;
    typename From::Place place;

    __device__ Chunked(const From& from, int line, int first)
        : from(from), line(line + threadIdx.x / CHUNKS), first(first + threadIdx.x % CHUNKS * CHUNK), place(from.place(this->first)) {}
    __device__ void fetch(elem* tile) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const Found found = from.where(from.line(line + r * APART), place);
            copy_16(tile + spot<LINES, LENGTH, DEEP>(threadIdx.x / CHUNKS + r * APART, threadIdx.x % CHUNKS * CHUNK), found.at, found.there);
        }
        (DEEP ? first : line) += DEEP ? LENGTH : LINES;
        if (DEEP) place = from.place(first);
    }
    __device__ void deliver(elem*) {}
};

// Any matrix at all.
struct Strided {
    static constexpr bool MOVED = true;
    using Place = int;
    const elem* base;
    long long line_step, place_step;
    int lines, length;
    __device__ int line(int l) const { return l; }
    __device__ int place(int p) const { return p; }
    __device__ Found where(int l, int p) const {
        return found(l < lines && p < length, base + l * line_step + p * place_step, base);
    }
    __device__ elem at(int l, int p) const { return read(where(l, p)); }
};

// The shapes of the tiles.
constexpr int A_LINES = A_DEEP ? BM : BK, A_LENGTH = A_DEEP ? BK : BM, B_LINES = B_DEEP ? BN : BK, B_LENGTH = B_DEEP ? BK : BN;
