// What a CUDA kernel sees when it is compiled for the CPU: the names that nvcc and NVRTC know by themselves.
// Included before the kernel's text, which is not changed.  Threads, barriers and warps live in runtime.cpp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstddef>
#include <utility>

#define TT_EMULATE 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ static inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define __restrict__
#define __shared__ static __attribute__((section("tt_shared")))
#define DYNAMIC_SHARED(name) unsigned char* const name = tt_dynamic_shared

using std::acos; using std::acosh; using std::asin; using std::asinh; using std::atan; using std::atan2; using std::atanh;
using std::ceil; using std::copysign; using std::cos; using std::cosh; using std::erf; using std::exp; using std::exp2;
using std::expm1; using std::fabs; using std::floor; using std::fmod; using std::log; using std::log10; using std::log1p;
using std::log2; using std::pow; using std::rint; using std::sin; using std::sinh; using std::sqrt; using std::tan;
using std::tanh; using std::trunc;

struct dim3 { unsigned x, y, z; };
struct uint3 { unsigned x, y, z; };

extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern unsigned char* tt_dynamic_shared;
void tt_sync_block();                                   // __syncthreads
void tt_sync_warp(unsigned mask);                       // __syncwarp
uint64_t tt_exchange(uint64_t mine, unsigned mask, unsigned source);  // every lane shows a word and sees another's
const uint64_t* tt_show(uint64_t mine);                 // every lane shows a word; all 32, until the next such meeting
unsigned tt_ballot(bool mine, unsigned mask);
unsigned tt_lane();
void tt_touch_atomic(const void* where, unsigned bytes);
void tt_fence();
void tt_cluster_arrive();
void tt_cluster_wait();
void tt_store_in_block(void* mine, unsigned rank, const void* value, unsigned bytes);
}

#define warpSize 32
inline void __syncthreads() { tt_sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { tt_sync_warp(mask); }
inline void __threadfence() { tt_fence(); }
inline void __threadfence_block() {}

// --- warps ---
namespace tt {
template <class T> inline uint64_t word(T x) { uint64_t w = 0; static_assert(sizeof(T) <= 8, ""); std::memcpy(&w, &x, sizeof x); return w; }
template <class T> inline T value(uint64_t w) { T x; std::memcpy(&x, &w, sizeof x); return x; }
template <class T> inline T from(unsigned mask, T x, unsigned lane) { return value<T>(tt_exchange(word(x), mask, lane & 31)); }
}
template <class T> inline T __shfl_sync(unsigned mask, T x, int source, int width = 32) {
    unsigned group = tt_lane() & ~(unsigned)(width - 1);
    return tt::from(mask, x, group + ((unsigned)source & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T x, int flip, int width = 32) {
    unsigned lane = tt_lane(), other = lane ^ (unsigned)flip;
    return tt::from(mask, x, (other & ~(unsigned)(width - 1)) <= lane ? other : lane);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32) {
    unsigned lane = tt_lane(), in_group = lane & (width - 1);
    return tt::from(mask, x, in_group >= delta ? lane - delta : lane);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32) {
    unsigned lane = tt_lane(), in_group = lane & (width - 1);
    return tt::from(mask, x, in_group + delta < (unsigned)width ? lane + delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return tt_ballot(predicate != 0, mask); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// --- atomics: one thread runs at a time, so plain updates are atomic; the race check is told ---
#define TT_PLAIN __attribute__((no_sanitize("thread"), noinline))
template <class T, class F> TT_PLAIN T tt_atomic(T* p, F update) {
    tt_touch_atomic(p, sizeof(T));
    T was = *p;
    *p = update(was);
    return was;
}
template <class T> inline T peek(T* p) { return tt_atomic(p, [](T was) { return was; }); }
template <class T> inline T atomicAdd(T* p, T x) {
    return tt_atomic(p, [x](T was) TT_PLAIN { if constexpr (std::is_integral_v<T>) return (T)((uint64_t)was + (uint64_t)x); else return was + x; });
}
template <class T> inline T atomicMax(T* p, T x) { return tt_atomic(p, [x](T was) { return was > x ? was : x; }); }
template <class T> inline T atomicMin(T* p, T x) { return tt_atomic(p, [x](T was) { return was < x ? was : x; }); }
template <class T> inline T atomicExch(T* p, T x) { return tt_atomic(p, [x](T) { return x; }); }
template <class T> inline T atomicCAS(T* p, T expected, T x) { return tt_atomic(p, [=](T was) { return was == expected ? x : was; }); }

// --- intrinsics ---
inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
inline float __int_as_float(int u) { float f; std::memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
inline int __float_as_int(float f) { int u; std::memcpy(&u, &f, 4); return u; }
inline double __longlong_as_double(long long u) { double f; std::memcpy(&f, &u, 8); return f; }
inline long long __double_as_longlong(double f) { long long u; std::memcpy(&u, &f, 8); return u; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T x) { *p = x; }

// --- C++ for the helpers whose CUDA text is inline PTX (see helpers.cuh) ---
struct f16;
struct bf16;
namespace tt {
inline float widen(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return (float)h; }
template <class F> inline unsigned short narrow(F x) { _Float16 h = (_Float16)x; unsigned short bits; std::memcpy(&bits, &h, 2); return bits; }
inline unsigned short narrow_bf16(float x) {
    unsigned u = __float_as_uint(x);
    if (x != x) return (unsigned short)(u >> 16 | 0x40);
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
// defined as templates, so that they need the struct only where a kernel has it
template <class H> inline H make(unsigned short bits) { H h; h.bits = bits; return h; }
}
#define TT_F16_CONVERSIONS \
    static inline float to_float(f16 h) { return tt::widen(h.bits); } \
    static inline f16 to_f16(float x) { return tt::make<f16>(tt::narrow(x)); } \
    static inline f16 to_f16(double x) { return tt::make<f16>(tt::narrow(x)); }
#define TT_BF16_CONVERSIONS static inline bf16 to_bf16(float x) { return tt::make<bf16>(tt::narrow_bf16(x)); }

// --- calling a kernel whose arguments arrive as an array of addresses, as cuLaunchKernel takes them ---
namespace tt {
template <class... A, size_t... I> __attribute__((no_sanitize("thread"))) inline void invoke(void (*kernel)(A...), void** a, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(a[I])...);
}
template <class... A> __attribute__((no_sanitize("thread"))) inline void invoke(void (*kernel)(A...), void** a) { invoke(kernel, a, std::index_sequence_for<A...>{}); }
}
#define TT_ENTRY(kernel) extern "C" __attribute__((no_sanitize("thread"))) void tt_call(void** arguments) { tt::invoke(kernel, arguments); }
