/* Counts the bytes of live blocks of at least 64 KB, now and at most: LD_PRELOAD=live_bytes.so, see processes.py.
   Tensors are such blocks, in every library alike.  Python's objects (tables of names, sources of modules) can be as large,
   and are left out from leave_python_out() on: what goes through Python's own allocators is not counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

enum { LEAST = 1 << 16 };
static _Atomic long live, most;
static __thread int in_python;

long live_bytes(void) { return live; }
long most_bytes(void) { return most; }
void forget_most(void) { most = live; }

static void count(void *block, int sign) {
    size_t size = block ? malloc_usable_size(block) : 0;
    if (size < LEAST || in_python) return;
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

/* Python's allocators, each behind one that says so.  Blocks of before stay counted, also when they are freed. */
typedef struct {
    void *self, *(*malloc)(void *, size_t), *(*calloc)(void *, size_t, size_t), *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator;
extern void PyMem_GetAllocator(int, Allocator *) __attribute__((weak));
extern void PyMem_SetAllocator(int, Allocator *) __attribute__((weak));
static Allocator theirs[3]; /* of raw blocks, which are NumPy's and stay counted, of memory, of objects */

static void *left(void *block) { in_python--; return block; }
static void *py_malloc(void *a, size_t n) { in_python++; return left(((Allocator *)a)->malloc(((Allocator *)a)->self, n)); }
static void *py_calloc(void *a, size_t n, size_t m) {
    in_python++;
    return left(((Allocator *)a)->calloc(((Allocator *)a)->self, n, m));
}
static void *py_realloc(void *a, void *old, size_t n) {
    in_python++;
    return left(((Allocator *)a)->realloc(((Allocator *)a)->self, old, n));
}
static void py_free(void *a, void *block) {
    in_python++;
    ((Allocator *)a)->free(((Allocator *)a)->self, block);
    in_python--;
}

void leave_python_out(void) {
    for (int domain = 1; domain < 3 && PyMem_SetAllocator; domain++) {
        PyMem_GetAllocator(domain, &theirs[domain]);
        Allocator ours = {&theirs[domain], py_malloc, py_calloc, py_realloc, py_free};
        PyMem_SetAllocator(domain, &ours);
    }
}
