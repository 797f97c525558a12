// Operands of convolutions read from an image whose channels lie last: 16 bytes are channels of one pixel, whatever the window.
// A pixel is a place (n, i, j) of the grid that the product counts; its tap (r, s) is the image's pixel at
// (i * STEP_Y + BEGIN_Y + r * MOVE_Y, j * STEP_X + BEGIN_X + s * MOVE_X).  The program writes before this text a struct Grid:
// IMAGES, DOWN ACROSS (of the grid), TALL BROAD (taps), STEP_ BEGIN_ MOVE_ (Y X), HEIGHT WIDTH (of the image), CHANNELS (of
// a tap), and how many elements lie from one IMAGE, ROW, COLUMN to the next.

constexpr int NO_PIXEL = -(1 << 24);  // a place far from any image
struct Pixel { int at, y, x; };

template <class G> __device__ __forceinline__ Pixel pixel_of(int p) {
    const int n = p / (G::DOWN * G::ACROSS), rest = p % (G::DOWN * G::ACROSS);
    const int y = rest / G::ACROSS * G::STEP_Y + G::BEGIN_Y, x = rest % G::ACROSS * G::STEP_X + G::BEGIN_X;
    return {n * G::IMAGE + y * G::ROW + x * G::COLUMN, n < G::IMAGES ? y : NO_PIXEL, x};
}

// Lines: pixels; along them the depth, taps and channels (r, s, c).  A thread has the same pixels at every step: where they
// lie, and which of their taps lie in the image (a bit each), is found once.
template <int LINES, int LENGTH, class G> struct Neighbours {
    static constexpr int CHUNKS = LENGTH / CHUNK, APART = THREADS / CHUNKS, ROUNDS = LINES / APART;
    static_assert(THREADS % CHUNKS == 0 && LINES % APART == 0, "threads divide a tile evenly");
    static_assert(G::TALL * G::BROAD <= 32, "a bit for each tap");
    const elem* const base;
    int first;
    int at[ROUNDS];
    unsigned inside[ROUNDS];

    __device__ Neighbours(const elem* base, int line, int first) : base(base), first(first + threadIdx.x % CHUNKS * CHUNK) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const Pixel p = pixel_of<G>(line + threadIdx.x / CHUNKS + r * APART);
            unsigned row = 0, all = 0;
#pragma unroll
            for (int s = 0; s < G::BROAD; ++s) row |= (unsigned)((unsigned)(p.x + s * G::MOVE_X) < G::WIDTH) << s;
#pragma unroll
            for (int t = 0; t < G::TALL; ++t) all |= (unsigned)(p.y + t * G::MOVE_Y) < G::HEIGHT ? row << t * G::BROAD : 0;
            at[r] = p.at;
            inside[r] = all;
        }
    }
    __device__ void fetch(elem* tile) {
        const int tap = first / G::CHANNELS;
        const int on = tap / G::BROAD * (G::MOVE_Y * G::ROW) + tap % G::BROAD * (G::MOVE_X * G::COLUMN) + first % G::CHANNELS;
        const unsigned bit = tap < G::TALL * G::BROAD ? 1u << tap : 0;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const bool there = inside[r] & bit;
            copy_16(tile + spot<LINES, LENGTH, true>(threadIdx.x / CHUNKS + r * APART, threadIdx.x % CHUNKS * CHUNK), base + (there ? at[r] + on : 0), there);
        }
        first += LENGTH;
    }
    __device__ void deliver(elem*) {}
};

// Lines: pixels, which are the depth; places: taps and channels.
template <class G> struct Below {
    using Place = Pixel;
    const elem* base;
    __device__ Pixel line(int p) const { return pixel_of<G>(p); }
    __device__ Pixel place(int l) const {
        const int tap = l / G::CHANNELS, y = tap / G::BROAD * G::MOVE_Y, x = tap % G::BROAD * G::MOVE_X;
        return {y * G::ROW + x * G::COLUMN + l % G::CHANNELS, tap < G::TALL * G::BROAD ? y : NO_PIXEL, x};
    }
    __device__ Found where(Pixel p, Pixel tap) const {
        return found((unsigned)(p.y + tap.y) < G::HEIGHT && (unsigned)(p.x + tap.x) < G::WIDTH, base + (p.at + tap.at), base);
    }
};

// A weight whose lines have TAPS taps of CHANNELS each, of which LIVE count: FIRST + t / LIVE_ACROSS * DOWN + t % LIVE_ACROSS * RIGHT.
template <int ROWS, int CHANNELS, int TAPS, int LIVE, int LIVE_ACROSS, int FIRST, int DOWN, int RIGHT> struct Some {
    using Place = int;
    const elem* base;
    __device__ int line(int l) const { return l < ROWS ? l * (TAPS * CHANNELS) : -1; }
    __device__ int place(int p) const {
        const int t = p / CHANNELS;
        return t < LIVE ? (FIRST + t / LIVE_ACROSS * DOWN + t % LIVE_ACROSS * RIGHT) * CHANNELS + p % CHANNELS : -1;
    }
    __device__ Found where(int l, int p) const { return found(l >= 0 && p >= 0, base + l + p, base); }
};
