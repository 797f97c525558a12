// Device functions that generated kernels may use.  A kernel's text is given only the pieces it names, in this order,
// so that it stays free of includes.  A piece starts at a line "//: names it defines".  Inline PTX stands behind
// "#ifndef TT_EMULATE": for the CPU emulator the same functions are written in plain C++ (emulate/device.h).

//: f16 to_f16 to_float_f16
struct f16 { unsigned short bits; };
#ifndef TT_EMULATE
__device__ __forceinline__ float to_float(f16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits)); return f; }
__device__ __forceinline__ f16 to_f16(float f) { f16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f)); return h; }
__device__ __forceinline__ f16 to_f16(double f) { f16 h; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h.bits) : "d"(f)); return h; }
#else
TT_F16_CONVERSIONS
#endif

//: bf16 to_bf16 to_float_bf16
struct bf16 { unsigned short bits; };
__device__ __forceinline__ float to_float(bf16 h) { return __uint_as_float((unsigned)h.bits << 16); }
#ifndef TT_EMULATE
__device__ __forceinline__ bf16 to_bf16(float f) { bf16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(f)); return h; }
#else
TT_BF16_CONVERSIONS
#endif
__device__ __forceinline__ bf16 to_bf16(double x) {  // float first, rounded to odd, so that the second rounding is right
    float f = (float)x;
    unsigned u = __float_as_uint(f);
    if ((double)f != x && f == f && (u & 1) == 0) u += (fabs((double)f) > fabs(x)) ? -1 : 1;
    return to_bf16(__uint_as_float(u));
}

//: Pack load_pack store_pack
// N neighbours read or written by one thread at once: 16 bytes where the type allows.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* p) { return *reinterpret_cast<const Pack<T, N>*>(p); }
template <class T, int N>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& v) { *reinterpret_cast<Pack<T, N>*>(p) = v; }

//: load_once
// Read as what nobody else reads, past the first cache.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_once(const T* p) {
#ifndef TT_EMULATE
    if constexpr (sizeof(T) * N == 16) {
        union { Pack<T, N> pack; unsigned word[4]; } u;
        asm("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(u.word[0]), "=r"(u.word[1]), "=r"(u.word[2]), "=r"(u.word[3]) : "l"(p));
        return u.pack;
    }
#endif
    return load_pack<N>(p);
}

//: stream_pack
// Written as what will not be read again soon: other lines may stay in the cache.
template <class T, int N>
__device__ __forceinline__ void stream_pack(T* p, const Pack<T, N>& v) {
#ifndef TT_EMULATE
    constexpr int bytes = sizeof(T) * N;
    if constexpr (bytes == 16) {
        union { Pack<T, N> pack; unsigned word[4]; } u = {v};
        asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" :: "l"(p), "r"(u.word[0]), "r"(u.word[1]), "r"(u.word[2]), "r"(u.word[3]) : "memory");
        return;
    }
#endif
    store_pack(p, v);
}

//: bitcast
template <class To, class From>
__device__ __forceinline__ To bitcast(From x) {
    static_assert(sizeof(To) == sizeof(From), "bitcast keeps the width");
    union { From from; To to; } u;
    u.from = x;
    return u.to;
}

//: nan_max nan_min
// NaN from either side wins, as in NumPy and PyTorch.
template <class T> __device__ __forceinline__ T nan_max(T a, T b) { return (a != a || a > b) ? a : b; }
template <class T> __device__ __forceinline__ T nan_min(T a, T b) { return (a != a || a < b) ? a : b; }
#ifndef TT_EMULATE
__device__ __forceinline__ float nan_max(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
__device__ __forceinline__ float nan_min(float a, float b) { float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
#endif

//: rough_exp rough_exp2 rough_inverse rough_div one_plus_erf
// For values that are rounded to half precision: the special function unit's answers (2 ulp, results below 2**-126 are 0;
// exp of x errs by |x| 2**-23 relatively, at most 2**-16 where it is finite).
#ifndef TT_EMULATE
__device__ __forceinline__ float rough_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float rough_inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float rough_div(float a, float b) { float y; asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
#else
__device__ __forceinline__ float rough_exp2(float x) { float y = exp2f(x); return y < 1.17549435e-38f ? 0.0f : y; }
__device__ __forceinline__ float rough_inverse(float x) { float y = 1.0f / x; return fabsf(y) < 1.17549435e-38f ? y * 0.0f : y; }
__device__ __forceinline__ float rough_div(float a, float b) { return a / b; }
#endif
__device__ __forceinline__ float rough_exp(float x) { return rough_exp2(x * 1.44269504f); }
// 1 + erf(x) without cancellation: exp(-x**2) times a fit of exp(z**2) erfc(z) by powers of 1 / (1 + 0.44 z), relative
// error 5.2e-6 (least squares, reweighted until even).  The exponential is the one that erf's derivative asks for.
__device__ __forceinline__ float one_plus_erf(float x) {
    float t = rough_inverse(1.0f + 0.44f * fabsf(x)), p = -0.14610096f;
    p = 0.35064018f + t * p;
    p = 0.0407432f + t * p;
    p = 0.26358081f + t * p;
    p = 0.24257071f + t * p;
    p = 0.24856093f + t * p;
    float y = t * p * rough_exp(-(x * x));
    return x < 0.0f ? y : 2.0f - y;
}

//: abs_of
// Of int8 and int16: an abs.s16 of -32768 comes out of ptxas as 32768 where it is widened, so this is one of 32 bits, cut down.
#ifndef TT_EMULATE
template <class T> __device__ __forceinline__ T abs_of(T x) { int y; asm("abs.s32 %0, %1;" : "=r"(y) : "r"((int)x)); return (T)y; }
#else
template <class T> T abs_of(T x) { return (T)(x < 0 ? -(int)x : (int)x); }
#endif

//: sign_of
template <class T> __device__ __forceinline__ T sign_of(T x) { return x != x ? x : (T)((x > (T)0) - (x < (T)0)); }

//: floor_div_int floor_mod_int trunc_mod_int
// Python's // and %; a zero divisor gives zero, and the one overflowing quotient wraps.
template <class T> __device__ __forceinline__ T floor_div_int(T a, T b) {
    if (b == 0) return 0;
    if ((T)-1 < (T)0 && b == (T)-1) return (T)(0 - (unsigned long long)a);
    T q = a / b;
    return (T)(q - (T)((a % b != 0) && ((a < 0) != (b < 0))));
}
template <class T> __device__ __forceinline__ T floor_mod_int(T a, T b) {
    if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
    T r = a % b;
    return (T)((r != 0 && ((r < 0) != (b < 0))) ? r + b : r);
}
template <class T> __device__ __forceinline__ T trunc_mod_int(T a, T b) {
    return (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) ? (T)0 : (T)(a % b);
}

//: floor_div_float floor_mod_float
// NumPy's divmod: the quotient from the exact remainder, so 1.0 // 0.1 is 9.
template <class T> __device__ __forceinline__ T floor_mod_float(T a, T b) {
    T r = fmod(a, b);
    if (b == 0) return r;
    if (r != 0) return ((b < 0) != (r < 0)) ? r + b : r;
    return copysign((T)0, b);
}
template <class T> __device__ __forceinline__ T floor_div_float(T a, T b) {
    if (b == 0) return a / b;
    T r = fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && ((b < 0) != (r < 0))) q -= (T)1;
    if (q == 0) return copysign((T)0, a / b);
    T whole = floor(q);
    return (q - whole > (T)0.5) ? whole + (T)1 : whole;
}

//: pow_int
template <class T> __device__ __forceinline__ T pow_int(T base, T exponent) {
    if (exponent < 0) return base == (T)1 ? (T)1 : base == (T)-1 ? (exponent % 2 != 0 ? (T)-1 : (T)1) : (T)0;
    unsigned long long b = (unsigned long long)base, out = 1, e = (unsigned long long)exponent;
    for (; e != 0; e >>= 1, b *= b) if (e & 1) out *= b;
    return (T)out;
}

//: shift_left shift_right
// A shift by the width or more (or by a negative amount) empties the word instead of being undefined.
template <class T, class B> __device__ __forceinline__ T shift_left(T a, B b) {
    return (unsigned long long)b < 8 * sizeof(T) ? (T)((unsigned long long)a << b) : (T)0;
}
template <class T, class B> __device__ __forceinline__ T shift_right(T a, B b) {
    return (unsigned long long)b < 8 * sizeof(T) ? (T)(a >> b) : (T)(a < 0 ? -1 : 0);
}

//: TwoWords
// What the host passes as it is, read as if it were memory: the seed and the offset of a random stream.
struct TwoWords {
    long long at[2];
    __device__ long long operator[](int i) const { return at[i]; }
};

//: fail_check
// The first failing check of a launch leaves its number and the index it saw; the host makes an IndexError of them.
__device__ __forceinline__ void fail_check(long long* failed, int number, long long value) {
    if (atomicCAS((unsigned long long*)failed, 0ull, (unsigned long long)number) == 0) failed[1] = value;
}

//: Sum Product Greatest Least All Any Parity
template <class T> constexpr bool is_whole = (T)0.5 == (T)0 || (T)0.5 == (T)1 && (T)2 == (T)1;  // integers and bool
template <class T> struct Sum {
    __device__ T operator()(T a, T b) const {
        if constexpr (is_whole<T>) return (T)((unsigned long long)a + (unsigned long long)b);  // wraps
        else return a + b;
    }
};
template <class T> struct Product {
    __device__ T operator()(T a, T b) const {
        if constexpr (is_whole<T>) return (T)((unsigned long long)a * (unsigned long long)b);
        else return a * b;
    }
};
template <class T> struct Greatest { __device__ T operator()(T a, T b) const { return nan_max(a, b); } };
template <class T> struct Least { __device__ T operator()(T a, T b) const { return nan_min(a, b); } };
template <class T> struct All { __device__ T operator()(T a, T b) const { return (T)(a & b); } };
template <class T> struct Any { __device__ T operator()(T a, T b) const { return (T)(a | b); } };
template <class T> struct Parity { __device__ T operator()(T a, T b) const { return (T)(a ^ b); } };

//: Ranked ArgGreatest ArgLeast
// A value and where it stood: the first of equals wins, and so does the first NaN.
template <class T> struct Ranked { T value; long long index; };
template <class T> struct ArgGreatest {
    __device__ Ranked<T> operator()(Ranked<T> a, Ranked<T> b) const {
        bool an = a.value != a.value, bn = b.value != b.value;
        bool tie = an ? bn : (!bn && a.value == b.value);
        return (tie ? a.index <= b.index : an || (!bn && a.value > b.value)) ? a : b;
    }
};
template <class T> struct ArgLeast {
    __device__ Ranked<T> operator()(Ranked<T> a, Ranked<T> b) const {
        bool an = a.value != a.value, bn = b.value != b.value;
        bool tie = an ? bn : (!bn && a.value == b.value);
        return (tie ? a.index <= b.index : an || (!bn && a.value < b.value)) ? a : b;
    }
};

//: Moments MergeMoments
// Mean, sum of squared distances from it, and count (Chan, Golub and LeVeque, 1979).
template <class T> struct Moments { T mean, m2, count; };
template <class T> struct MergeMoments {
    __device__ Moments<T> operator()(Moments<T> a, Moments<T> b) const {
        Moments<T> out;
        out.count = a.count + b.count;
        T share = out.count > (T)0 ? b.count / out.count : (T)0, gap = b.mean - a.mean;
        if (a.count == (T)0) { out.mean = b.mean; out.m2 = b.m2; return out; }
        if (b.count == (T)0) { out.mean = a.mean; out.m2 = a.m2; return out; }
        out.mean = a.mean + gap * share;
        out.m2 = a.m2 + b.m2 + gap * gap * a.count * share;
        return out;
    }
};

//: ExpSum MergeExpSum settled with_neighbours
// Running maximum and sum of exp(x - maximum): the online softmax (Milakov and Gimelshein, 2018).
template <class T> struct ExpSum { T peak, sum; };
template <class T> struct MergeExpSum {
    __device__ ExpSum<T> operator()(ExpSum<T> a, ExpSum<T> b) const {
        ExpSum<T> out;
        out.peak = nan_max(a.peak, b.peak);
        T wa = a.peak == out.peak ? (T)1 : exp(a.peak - out.peak);
        T wb = b.peak == out.peak ? (T)1 : exp(b.peak - out.peak);
        out.sum = a.sum * wa + b.sum * wb;
        return out;
    }
};

// Some neighbours at once: one exponential for what was summed before, one for each of them.
template <int N, class T, class Exp>
__device__ __forceinline__ ExpSum<T> with_neighbours(ExpSum<T> a, const T (&x)[N], Exp exponential) {
    T peak = a.peak;
#pragma unroll
    for (int k = 0; k < N; ++k) peak = nan_max(peak, x[k]);
    T level = peak - peak == (T)0 ? peak : (T)0;  // no infinity is taken from an infinity: settled sees to those
    T sum = a.sum * exponential((a.peak > peak ? peak : a.peak) - level);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += exponential(x[k] - level);
    return ExpSum<T>{peak, sum};
}

// The joined sum as exp(x - maximum) means it: 0 where all is -inf, NaN where the maximum is +inf.
template <class T> __device__ __forceinline__ ExpSum<T> settled(ExpSum<T> a) {
    T gap = a.peak - a.peak;
    return ExpSum<T>{a.peak, gap == gap ? a.sum : a.peak < (T)0 ? (T)0 : gap};
}

//: shuffle_xor shuffle_up shuffle_from
// Values of any size between the lanes of a warp, four bytes at a time.
template <class T, class F> __device__ __forceinline__ T shuffle_words(T x, F move) {
    constexpr int words = (sizeof(T) + 3) / 4;
    union { T value; unsigned word[words]; } u = {};
    u.value = x;
#pragma unroll
    for (int w = 0; w < words; ++w) u.word[w] = move(u.word[w]);
    return u.value;
}
template <class T> __device__ __forceinline__ T shuffle_xor(T x, int mask) {
    return shuffle_words(x, [=](unsigned w) { return __shfl_xor_sync(0xffffffffu, w, mask); });
}
template <class T> __device__ __forceinline__ T shuffle_up(T x, int delta) {
    return shuffle_words(x, [=](unsigned w) { return __shfl_up_sync(0xffffffffu, w, delta); });
}
template <class T> __device__ __forceinline__ T shuffle_from(T x, int lane) {
    return shuffle_words(x, [=](unsigned w) { return __shfl_sync(0xffffffffu, w, lane); });
}

//: warp_reduce
// All of LANES neighbouring lanes (a power of two up to 32) get the reduction of their values, by a butterfly.
template <int LANES, class T, class Join> __device__ __forceinline__ T warp_reduce(T x, Join join) {
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) x = join(x, shuffle_xor(x, d));
    return x;
}

//: warp_scan
// Lane k gets the combination of lanes 0..k.
template <class T, class Join> __device__ __forceinline__ T warp_scan(T x, Join join) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        T below = shuffle_up(x, d);
        if (lane >= d) x = join(below, x);
    }
    return x;
}

//: cluster_arrive cluster_wait store_in_block
// The blocks of a cluster (compute capability 9.0) run together and may write into each other's shared memory.  Who has
// arrived goes on; behind the wait all have arrived, and what they wrote before they did is seen.
#ifndef TT_EMULATE
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// To the same place in the shared memory of block `rank`.
template <class T> __device__ __forceinline__ void store_in_block(T* mine, unsigned rank, T value) {
    unsigned long long theirs;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
    *reinterpret_cast<T*>(theirs) = value;
}
#else
__device__ __forceinline__ void cluster_arrive() { tt_cluster_arrive(); }
__device__ __forceinline__ void cluster_wait() { tt_cluster_wait(); }
template <class T> __device__ __forceinline__ void store_in_block(T* mine, unsigned rank, T value) {
    tt_store_in_block(mine, rank, &value, sizeof(T));
}
#endif

//: last_to_arrive
// True in every thread of the block that is the last of `blocks` to come here; writes before the call are visible to it.
// The counter is left at zero for the next launch.
__device__ __forceinline__ bool last_to_arrive(unsigned* counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(counter, 1u) == blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

//: peek
// A first look at a word that others update by atomics: any value seen will do, the update checks it.
#ifndef TT_EMULATE
template <class T> __device__ __forceinline__ T peek(T* p) { return *(volatile T*)p; }
#endif

//: atomic_combine
// join(*p, x) stored back, by compare and swap: for types and operations without an instruction of their own.
template <class T, class Join> __device__ __forceinline__ void atomic_combine(T* p, T x, Join join) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "narrow types go through atomic_combine_narrow");
    if constexpr (sizeof(T) == 4) {
        unsigned* at = reinterpret_cast<unsigned*>(p);
        unsigned seen = peek(at), was;
        do { was = seen; seen = atomicCAS(at, was, bitcast<unsigned>(join(bitcast<T>(was), x))); } while (seen != was);
    } else {
        unsigned long long* at = reinterpret_cast<unsigned long long*>(p);
        unsigned long long seen = peek(at), was;
        do { was = seen; seen = atomicCAS(at, was, bitcast<unsigned long long>(join(bitcast<T>(was), x))); } while (seen != was);
    }
}

//: atomic_combine_narrow
// The same for 1- and 2-byte elements, inside the aligned word that holds them; `join` works on the raw element.
template <class T, class Join> __device__ __forceinline__ void atomic_combine_narrow(T* p, Join join) {
    size_t address = reinterpret_cast<size_t>(p);
    unsigned* at = reinterpret_cast<unsigned*>(address & ~(size_t)3);
    unsigned shift = (unsigned)(address & 3) * 8, mask = (sizeof(T) == 1 ? 0xffu : 0xffffu) << shift;
    unsigned seen = peek(at), was;
    do {
        was = seen;
        union { T value; unsigned word; } u;
        u.word = (was & mask) >> shift;
        T next = join(u.value);
        u.word = 0;
        u.value = next;
        seen = atomicCAS(at, was, (was & ~mask) | (u.word << shift));
    } while (seen != was);
}
