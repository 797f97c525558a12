// The operands of convolutions as matrices that lie nowhere in memory: each element is found when a tile is fetched.
// The program writes before this text: HEIGHT WIDTH (of x), HIGH WIDE (of y = conv(x, w)), TALL BROAD (of w's windows),
// STRIDE_Y STRIDE_X PAD_Y PAD_X DILATE_Y DILATE_X; IMAGES; how many elements of x and y lie from one image, channel,
// row, column to the next (X_IMAGE X_CHANNEL X_ROW X_COLUMN, Y_...).

constexpr int TAPS = TALL * BROAD, NOWHERE = -(1 << 24);  // a place far from any image
struct Spot { const elem* at; int y, x; };
struct Tap { int offset, y, x; };

// x under the windows.  Lines: channels and taps (c, r, s); places: images and pixels of y (n, i, j).
template <int CHANNELS> struct Windows {
    static constexpr bool MOVED = true;
    using Place = Spot;
    const elem* base;
    __device__ Tap line(int l) const {
        const int tap = l % TAPS, y = tap / BROAD * DILATE_Y, x = tap % BROAD * DILATE_X;
        return {l / TAPS * X_CHANNEL + y * X_ROW + x * X_COLUMN, l < CHANNELS * TAPS ? y : NOWHERE, x};
    }
    __device__ Spot place(int p) const {
        const int n = p / (HIGH * WIDE), pixel = p % (HIGH * WIDE);
        const int y = pixel / WIDE * STRIDE_Y - PAD_Y, x = pixel % WIDE * STRIDE_X - PAD_X;
        if (n >= IMAGES) return {base, NOWHERE, 0};
        return {base + (long long)n * X_IMAGE + (y * X_ROW + x * X_COLUMN), y, x};
    }
    __device__ Found where(Tap l, Spot p) const {
        return found((unsigned)(p.y + l.y) < HEIGHT && (unsigned)(p.x + l.x) < WIDTH, p.at + l.offset, base);
    }
    __device__ elem at(Tap l, Spot p) const { return read(where(l, p)); }
};

// y as it is.  Lines: channels; places: images and pixels.
template <int CHANNELS> struct Pixels {
    static constexpr bool MOVED = true;
    using Place = Found;
    const elem* base;
    __device__ int line(int l) const { return l < CHANNELS ? l * Y_CHANNEL : -1; }
    __device__ Found place(int p) const {
        const int n = p / (HIGH * WIDE), pixel = p % (HIGH * WIDE);
        return found(n < IMAGES, base + (long long)n * Y_IMAGE + (pixel / WIDE * Y_ROW + pixel % WIDE * Y_COLUMN), base);
    }
    __device__ Found where(int l, Found p) const { return found(p.there && l >= 0, p.at + l, base); }
    __device__ elem at(int l, Found p) const { return read(where(l, p)); }
};
