/* Counts the bytes of live blocks of at least 64 KB, now and at most: LD_PRELOAD=live_bytes.so, see processes.py.
   Tensors are such blocks, in every library alike; Python's objects and a compiler's are smaller or come from mmap. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

enum { LEAST = 1 << 16 };
static _Atomic long live, most;

long live_bytes(void) { return live; }
long most_bytes(void) { return most; }
void forget_most(void) { most = live; }

static void count(void *block, int sign) {
    size_t size = block ? malloc_usable_size(block) : 0;
    if (size < LEAST) return;
    long now = atomic_fetch_add(&live, sign * (long)size) + sign * (long)size, seen = most;
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) {}
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);

static void *counted(void *block) { count(block, 1); return block; }
void *malloc(size_t n) { return counted(__libc_malloc(n)); }
void *calloc(size_t n, size_t m) { return counted(__libc_calloc(n, m)); }
void *memalign(size_t a, size_t n) { return counted(__libc_memalign(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return counted(__libc_memalign(a, n)); }
void free(void *block) { count(block, -1); __libc_free(block); }

int posix_memalign(void **out, size_t a, size_t n) {
    void *block = counted(__libc_memalign(a, n));
    if (!block && n) return ENOMEM;
    *out = block;
    return 0;
}

void *realloc(void *old, size_t n) {
    count(old, -1);
    void *block = __libc_realloc(old, n);
    count(block ? block : (n ? old : NULL), 1);
    return block;
}
