// The operands of an input's gradient, for its pixels of one remainder (COUNT_Y by COUNT_X of them; see convolution.py): they
// share the taps that ever lie on them, LIVE_Y by LIVE_X.

constexpr int LIVE = LIVE_Y * LIVE_X > 0 ? LIVE_Y * LIVE_X : 1, LIVE_ACROSS = LIVE_X > 0 ? LIVE_X : 1;

// y where a window covered x.  Lines: channels of y and taps (o, r, s); places: images and pixels of x.
template <int CHANNELS> struct Covers {
    static constexpr bool MOVED = true;
    using Place = Spot;
    const elem* base;
    __device__ Tap line(int l) const {
        const int tap = l % LIVE, y = tap / LIVE_ACROSS * BACK_Y, x = tap % LIVE_ACROSS * BACK_X;
        return {l / LIVE * Y_CHANNEL - (y * Y_ROW + x * Y_COLUMN), l < CHANNELS * LIVE ? y : -NOWHERE, x};
    }
    __device__ Spot place(int p) const {
        const int n = p / (COUNT_Y * COUNT_X), pixel = p % (COUNT_Y * COUNT_X);
        const int y = pixel / COUNT_X + BEGIN_Y, x = pixel % COUNT_X + BEGIN_X;
        if (n >= IMAGES) return {base, NOWHERE, 0};
        return {base + (long long)n * Y_IMAGE + (y * Y_ROW + x * Y_COLUMN), y, x};
    }
    __device__ Found where(Tap l, Spot p) const {
        return found((unsigned)(p.y - l.y) < HIGH && (unsigned)(p.x - l.x) < WIDE, p.at + l.offset, base);
    }
    __device__ elem at(Tap l, Spot p) const { return read(where(l, p)); }
};

// w turned round.  Lines: channels of x; places: channels of y and taps.
template <int INS, int OUTS> struct Turned {
    static constexpr bool MOVED = true;
    using Place = Found;
    const elem* base;
    __device__ int line(int l) const { return l < INS ? l * TAPS : -1; }
    __device__ Found place(int p) const {
        const int tap = p % LIVE, y = FIRST_TAP_Y + tap / LIVE_ACROSS * JUMP_Y, x = FIRST_TAP_X + tap % LIVE_ACROSS * JUMP_X;
        return found(p < OUTS * LIVE, base + p / LIVE * (INS * TAPS) + (y * BROAD + x), base);
    }
    __device__ Found where(int l, Found p) const { return found(p.there && l >= 0, p.at + l, base); }
    __device__ elem at(int l, Found p) const { return read(where(l, p)); }
};
