// The emulated machine: runs the threads of a block as fibers of one CPU thread, blocks one after another.  The blocks of
// a cluster run together; their shared memory is one place, where each finds its own contents while it runs.
//
// A fiber runs until it must wait (at a barrier or a warp exchange) and then hands over to the next one that can run.
// With TT_CHECK every memory access of the kernel arrives here too: the kernel is compiled with the instrumentation of
// -fsanitize=thread, but the callbacks (__tsan_read4, ...) are ours, at the end of this file.  They know which barrier
// interval each byte was touched in and by whom, which buffers exist and which shared memory was written.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct dim3 { unsigned x, y, z; };
extern "C" {
dim3 threadIdx, blockIdx, blockDim, gridDim;
unsigned char* tt_dynamic_shared = nullptr;
void tt_call(void** arguments);
extern unsigned char __start_tt_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_tt_shared[] __attribute__((weak, visibility("hidden")));
}

namespace {
enum State : uint8_t { Ready, WaitsForWarp, WaitsForBlock, WaitsForCluster, Done };

struct Warp {
    unsigned live = 0, arrived = 0, mask = 0;
    unsigned interval = 0;  // counts __syncwarp
    bool is_sync = false;
    uint64_t shown[32], seen[32];
};

struct Fiber {
    void* stack_pointer = nullptr;
    State state = Ready;
    dim3 index;
    unsigned arrived = 0, waited = 0;  // at the cluster's barrier, so many times
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

struct Touch {  // the last access of one kind to a byte
    void* pc = nullptr;
    unsigned block = ~0u, thread = 0, block_interval = 0, warp_interval = 0, cluster = 0, arrived = 0;
    bool atomic = false;
};
struct Cell { Touch write, read, other_read; };  // two readers, so that a write meets a reader other than itself

struct Block {
    dim3 index;
    unsigned alive = 0, at_barrier = 0, interval = 0;
    std::vector<unsigned char> shared;  // its contents while another block of the cluster runs
    std::vector<Cell> cells;            // and what is known of their bytes
    std::set<unsigned> acquired;        // blocks whose writes it has seen published
};

const size_t STACK = 256 * 1024;
std::vector<Fiber> fibers;  // of a cluster, block by block
std::vector<Warp> warps;
std::vector<Block> blocks;
unsigned char* stacks = nullptr;
size_t stacks_size = 0;
unsigned current = 0, per_block = 1, shown = 0, alive = 0, at_cluster = 0, cluster_phase = 0, cluster_number = 0;
bool backwards = false;
void** call_arguments = nullptr;
void* main_stack_pointer = nullptr;
#if !defined(__x86_64__)
ucontext_t main_context;
#endif
std::string failure;

dim3 index_of(unsigned i) { return {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)}; }

std::string thread_name(const dim3& t, const dim3& b) {
    char text[128];
    snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
    return text;
}

#if defined(__x86_64__)
// Save the registers a call must keep, change stacks, restore: about ten instructions, no system call.
extern "C" void tt_switch(void** save, void* load);
asm(R"(
.text
.globl tt_switch
.hidden tt_switch
tt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
#endif

Block& own_block() { return blocks[current / per_block]; }

void exchange_cells(Block& b);

// Put the shared memory of a block where its threads look for it.
void show_block(unsigned b) {
    if (b == shown) return;
    size_t bytes = __stop_tt_shared - __start_tt_shared;
    if (bytes) {
        memcpy(blocks[shown].shared.data(), __start_tt_shared, bytes);
        memcpy(__start_tt_shared, blocks[b].shared.data(), bytes);
    }
    exchange_cells(blocks[shown]);
    exchange_cells(blocks[b]);
    shown = b;
}

void enter(unsigned to) {
    current = to;
    show_block(to / per_block);
    threadIdx = fibers[to].index;
    blockIdx = own_block().index;
}

void switch_to(unsigned to) {
    unsigned from = current;
    if (from == to) return;
    enter(to);
#if defined(__x86_64__)
    tt_switch(&fibers[from].stack_pointer, fibers[to].stack_pointer);
#else
    swapcontext(&fibers[from].context, &fibers[to].context);
#endif
    enter(from);
}

void leave_to_main() {
#if defined(__x86_64__)
    void* unused;
    tt_switch(&unused, main_stack_pointer);
#else
    setcontext(&main_context);
#endif
}

[[noreturn]] void give_up(const std::string& why) {
    if (failure.empty()) failure = why;
    leave_to_main();
    abort();
}

// The next fiber that can run, or -1.
int next_ready() {
    unsigned n = (unsigned)fibers.size();
    for (unsigned step = 1; step <= n; ++step) {
        unsigned i = backwards ? (current + n - step) % n : (current + step) % n;
        if (fibers[i].state == Ready) return (int)i;
    }
    return -1;
}

void wait() {
    while (fibers[current].state != Ready) {
        int next = next_ready();
        if (next < 0) {
            State state = fibers[current].state;
            give_up("deadlock: " + thread_name(threadIdx, blockIdx) +
                    (state == WaitsForWarp ? " waits in a warp operation that other lanes of its mask never reach"
                     : state == WaitsForCluster ? " waits for the cluster, where others never arrive"
                                                : " waits at __syncthreads() while others wait in a warp operation"));
        }
        switch_to((unsigned)next);
    }
}

void release_block() {
    Block& b = own_block();
    b.at_barrier = 0;
    ++b.interval;
    Fiber* first = &fibers[current / per_block * per_block];
    for (Fiber* f = first; f < first + per_block; ++f) if (f->state == WaitsForBlock) f->state = Ready;
}

void release_cluster() {
    at_cluster = 0;
    ++cluster_phase;
    for (auto& f : fibers) if (f.state == WaitsForCluster) f.state = Ready;
}

void finish_fiber() {
    unsigned me = current;
    Warp& w = warps[me / 32];
    fibers[me].state = Done;
    w.live &= ~(1u << me % 32);
    if (w.arrived & w.mask && w.mask >> me % 32 & 1)
        give_up("lane " + std::to_string(me % 32) + " of a warp left the kernel before a warp operation whose mask names it");
    if (--alive == 0) leave_to_main();
    Block& b = own_block();
    if (b.at_barrier == --b.alive) release_block();
    if (at_cluster == alive) release_cluster();
    int next = next_ready();
    if (next < 0) give_up("deadlock: the last running thread left while others wait in a warp operation");
    switch_to((unsigned)next);
    abort();
}

void fiber_main() {
    tt_call(call_arguments);
    finish_fiber();
}

void make_fiber(unsigned i) {
    Fiber& f = fibers[i];
    f.state = Ready;
    f.arrived = f.waited = 0;
    f.index = index_of(i % per_block);
    unsigned char* stack = stacks + STACK * i;
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack + STACK - 64);
    *--top = nullptr;  // where fiber_main would return to; it never does
    *--top = reinterpret_cast<void*>(fiber_main);
    for (int r = 0; r < 6; ++r) *--top = nullptr;
    f.stack_pointer = top;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
#endif
}

void reserve_stacks(unsigned n) {
    if (stacks_size >= STACK * n) return;
    if (stacks) munmap(stacks, stacks_size);
    stacks_size = STACK * n;
    stacks = static_cast<unsigned char*>(
        mmap(nullptr, stacks_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

void begin_check();

// Undefined contents should look it: every byte 0xff, NaN as a float.
void poison_shared() {
    size_t bytes = __start_tt_shared ? __stop_tt_shared - __start_tt_shared : 0;
    if (bytes) memset(__start_tt_shared, 0xff, bytes);
    for (auto& b : blocks) b.shared.assign(blocks.size() > 1 ? bytes : 0, 0xff);
}

// Run the blocks of a cluster (mostly one), the first of which is at `first`.
void run_cluster(dim3 first, dim3 size) {
    per_block = blockDim.x * blockDim.y * blockDim.z;
    blocks.assign(size.x * size.y * size.z, Block{});
    unsigned n = per_block * (unsigned)blocks.size();
    fibers.resize(n);
    warps.assign((n + 31) / 32, Warp{});
    for (unsigned b = 0; b < blocks.size(); ++b) {
        blocks[b].index = {first.x + b % size.x, first.y + b / size.x % size.y, first.z + b / (size.x * size.y)};
        blocks[b].alive = per_block;
    }
    for (unsigned i = 0; i < n; ++i) {
        make_fiber(i);
        warps[i / 32].live |= 1u << i % 32;
    }
    alive = n;
    at_cluster = cluster_phase = shown = 0;
    ++cluster_number;
    poison_shared();
    begin_check();
    enter(backwards ? n - 1 : 0);
#if defined(__x86_64__)
    tt_switch(&main_stack_pointer, fibers[current].stack_pointer);
#else
    swapcontext(&main_context, &fibers[current].context);
#endif
}
}  // namespace

extern "C" {
void tt_sync_block() {
    fibers[current].state = WaitsForBlock;
    if (++own_block().at_barrier == own_block().alive) release_block();
    wait();
}

void tt_cluster_arrive() {
    Fiber& f = fibers[current];
    if (f.arrived != f.waited) give_up(thread_name(threadIdx, blockIdx) + " arrives at the cluster's barrier twice without a wait");
    ++f.arrived;
    if (++at_cluster == alive) release_cluster();
}

void tt_cluster_wait() {
    Fiber& f = fibers[current];
    if (++f.waited > f.arrived) give_up(thread_name(threadIdx, blockIdx) + " waits for the cluster without having arrived");
    if (cluster_phase < f.waited) f.state = WaitsForCluster;
    wait();
}

void touch_in_block(Block& b, size_t offset, unsigned bytes, void* pc);

// A write into the shared memory of another block: `mine` is the place in one's own.
void tt_store_in_block(void* mine, unsigned rank, const void* value, unsigned bytes) {
    if (rank >= blocks.size()) give_up("there is no block " + std::to_string(rank) + " in the cluster");
    Block& b = blocks[rank];
    if (!fibers[current].waited) give_up("shared memory of another block is written before a wait for the cluster: it may not run yet");
    if (!b.alive) give_up("shared memory is written of a block that has left");
    size_t offset = (unsigned char*)mine - __start_tt_shared;
    touch_in_block(b, offset, bytes, __builtin_return_address(0));
    memcpy(&b == &blocks[shown] ? mine : b.shared.data() + offset, value, bytes);
}

unsigned tt_lane() { return current % 32; }

static void meet(uint64_t mine, unsigned mask, bool sync) {
    Warp& w = warps[current / 32];
    unsigned lane = current % 32, last = (unsigned)fibers.size() - current / 32 * 32;
    if (last < 32) mask &= (1u << last) - 1;  // lanes that do not exist
    if (!(mask >> lane & 1)) give_up("a lane takes part in a warp operation whose mask leaves it out");
    if (mask & ~w.live) give_up("the mask of a warp operation names a lane that has left the kernel");
    if (w.arrived && w.mask != mask) give_up("lanes of one warp meet with different masks");
    w.mask = mask;
    w.is_sync = sync;
    w.shown[lane] = mine;
    w.arrived |= 1u << lane;
    fibers[current].state = WaitsForWarp;
    if (w.arrived == mask) {
        memcpy(w.seen, w.shown, sizeof w.seen);
        w.arrived = 0;
        if (sync) ++w.interval;
        for (unsigned i = 0; i < 32; ++i)
            if (mask >> i & 1) fibers[current / 32 * 32 + i].state = Ready;
    }
    wait();
}

uint64_t tt_exchange(uint64_t mine, unsigned mask, unsigned source) {
    meet(mine, mask, false);
    return warps[current / 32].seen[source];
}
const uint64_t* tt_show(uint64_t mine) {
    meet(mine, 0xffffffffu, false);
    return warps[current / 32].seen;
}
unsigned tt_ballot(bool mine, unsigned mask) {
    meet(mine, mask, false);
    unsigned out = 0;
    for (int i = 0; i < 32; ++i)
        if (mask >> i & 1) out |= (unsigned)warps[current / 32].seen[i] << i;
    return out;
}
void tt_sync_warp(unsigned mask) { meet(0, mask, true); }

struct Range { uint64_t start, bytes; };
void tt_set_ranges(const Range* ranges, unsigned count);

// Runs the kernel; 0, or 1 with the reason in `message`.
int tt_launch(void** arguments, const unsigned* dims, int fibers_needed, int order, char* message, size_t room) {
    gridDim = {dims[0], dims[1], dims[2]};
    blockDim = {dims[3], dims[4], dims[5]};
    call_arguments = arguments;
    backwards = order != 0;
    failure.clear();
    dim3 size = {dims[6], dims[7], dims[8]};
    unsigned n = blockDim.x * blockDim.y * blockDim.z, count = size.x * size.y * size.z;
    if (gridDim.x % size.x || gridDim.y % size.y || gridDim.z % size.z) failure = "the grid is not made of whole clusters";
    if (count > 1 && n % 32) failure = "blocks of a cluster must be whole warps";
    if (fibers_needed) reserve_stacks(n * count);
    for (unsigned z = 0; z < gridDim.z && failure.empty(); z += size.z)
        for (unsigned y = 0; y < gridDim.y && failure.empty(); y += size.y)
            for (unsigned x = 0; x < gridDim.x && failure.empty(); x += size.x) {
                if (fibers_needed) {
                    run_cluster({x, y, z}, size);
                    continue;
                }
                blockIdx = {x, y, z};
                blocks.clear();
                poison_shared();
                for (unsigned i = 0; i < n; ++i) {
                    threadIdx = index_of(i);
                    tt_call(arguments);
                }
            }
    snprintf(message, room, "%s", failure.c_str());
    return failure.empty() ? 0 : 1;
}
}

// --- the race check ----------------------------------------------------------------------------------------------------
#if !defined(TT_CHECK)
namespace {
void begin_check() {}
void exchange_cells(Block&) {}
}
extern "C" {
void touch_in_block(Block&, size_t, unsigned, void*) {}
void tt_touch_atomic(const void*, unsigned) {}
void tt_fence() {}
void tt_set_ranges(const Range*, unsigned) {}
}
#else
namespace {
struct Region { uint64_t start, end; bool shared; std::vector<Cell> cells; };
std::vector<Region> regions;
std::map<uint64_t, std::set<unsigned>> released;  // atomic location -> blocks whose earlier writes it publishes
std::set<std::pair<void*, void*>> reported;

unsigned block_number() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

Region* shared_region() {
    for (auto& r : regions) if (r.shared) return &r;
    return nullptr;
}

void begin_check() {
    Region* r = shared_region();
    if (!r) return;
    r->cells.assign(r->cells.size(), Cell{});
    for (auto& b : blocks) b.cells.assign(blocks.size() > 1 ? r->cells.size() : 0, Cell{});
}

void exchange_cells(Block& b) {
    if (Region* r = shared_region()) std::swap(r->cells, b.cells);
}

Touch touch_now(void* pc, bool atomic) {
    return Touch{pc, block_number(), current % per_block, own_block().interval, warps[current / 32].interval,
                 cluster_number, fibers[current].arrived, atomic};
}

bool ordered(const Touch& was, const Touch& now) {
    if (was.block == ~0u || (was.atomic && now.atomic)) return true;
    if (was.cluster == now.cluster && fibers[current].waited > was.arrived) return true;
    if (was.block != now.block) return own_block().acquired.count(was.block) != 0;
    if (was.thread == now.thread || was.block_interval != now.block_interval) return true;
    return was.thread / 32 == now.thread / 32 && was.warp_interval != now.warp_interval;
}

dim3 block_of(unsigned b) { return {b % gridDim.x, b / gridDim.x % gridDim.y, b / (gridDim.x * gridDim.y)}; }

std::string at(void* pc) {
    char text[40];
    snprintf(text, sizeof text, "{pc %p}", pc);
    return text;
}

void race(const Touch& was, const Touch& now, bool shared, const char* first, const char* second) {
    give_up(std::string("race in ") + (shared ? "shared" : "global") + " memory: " +
            thread_name(index_of(was.thread), block_of(was.block)) + " " + first + " at " + at(was.pc) + ", " +
            thread_name(index_of(now.thread), block_of(now.block)) + " " + second + " at " + at(now.pc) +
            (was.block == now.block ? ", with no barrier in between" : ", and nothing orders the two blocks"));
}

Region* region_of(uint64_t a) {
    for (auto& r : regions) if (a >= r.start && a < r.end) return &r;
    return nullptr;
}

bool on_a_stack(uint64_t a) {
    uint64_t low = (uint64_t)stacks;
    return a >= low && a < low + stacks_size;
}

extern "C" char __executable_start[] __attribute__((weak));
extern "C" char _end[] __attribute__((weak, visibility("hidden")));
extern "C" char __ehdr_start[] __attribute__((weak, visibility("hidden")));

bool in_program(uint64_t a) { return a >= (uint64_t)__ehdr_start && a < (uint64_t)_end; }

void mark(Cell& c, bool write, bool shared, const Touch& now, bool padded = false) {
    if (!ordered(c.write, now)) race(c.write, now, shared, "writes", write ? "writes" : "reads");
    if (write) {
        if (!ordered(c.read, now)) race(c.read, now, shared, "reads", "writes");
        if (!ordered(c.other_read, now)) race(c.other_read, now, shared, "reads", "writes");
        c.write = now;
        return;
    }
    if (shared && c.write.block == ~0u && padded) return;
    if (shared && c.write.block == ~0u)
        give_up("shared memory is read before anything is written there: " + thread_name(threadIdx, blockIdx) + " at " + at(now.pc));
    if (c.read.thread != now.thread || c.read.block != now.block) c.other_read = c.read;
    c.read = now;
}

void touch(const void* where, unsigned bytes, bool write, bool atomic, void* pc) {
    uint64_t a = (uint64_t)where;
    if (on_a_stack(a)) return;
    Region* r = region_of(a);
    if (atomic && !r) r = region_of(a + bytes - 1);
    if (atomic && r) {  // a narrow element is updated with the word around it, which may reach beyond a buffer: memory comes in words
        uint64_t from = a < r->start ? r->start : a, to = a + bytes > r->end ? r->end : a + bytes;
        a = from, bytes = (unsigned)(to - from);
    }
    if (!r || a + bytes > r->end) {
        if (!r && in_program(a)) return;
        give_up("out of bounds: " + thread_name(threadIdx, blockIdx) + (write ? " writes " : " reads ") +
                std::to_string(bytes) + " bytes that belong to no buffer at " + at(pc));
    }
    Touch now = touch_now(pc, atomic);
    bool padded = false;  // a structure is copied with what lies between its members: one of them was written
    for (uint64_t i = a - r->start; i < a - r->start + bytes; ++i) padded |= bytes > 1 && r->cells[i].write.block != ~0u;
    for (uint64_t i = a - r->start; i < a - r->start + bytes; ++i) mark(r->cells[i], write, r->shared, now, padded);
}
}  // namespace

extern "C" {
void tt_set_ranges(const Range* ranges, unsigned count) {
    regions.clear();
    released.clear();
    for (unsigned i = 0; i < count; ++i)
        regions.push_back({ranges[i].start, ranges[i].start + ranges[i].bytes, false, std::vector<Cell>(ranges[i].bytes)});
    if (__start_tt_shared) {
        uint64_t low = (uint64_t)__start_tt_shared, high = (uint64_t)__stop_tt_shared;
        regions.push_back({low, high, true, std::vector<Cell>(high - low)});
    }
}

void touch_in_block(Block& b, size_t offset, unsigned bytes, void* pc) {
    auto& cells = &b == &blocks[shown] ? shared_region()->cells : b.cells;
    Touch now = touch_now(pc, false);
    for (size_t i = offset; i < offset + bytes; ++i) mark(cells[i], true, true, now);
}

void tt_fence() {}

// An atomic update publishes what its block wrote before it, and shows it what others published there.
void tt_touch_atomic(const void* where, unsigned bytes) {
    touch(where, bytes, true, true, __builtin_return_address(0));
    auto& earlier = released[(uint64_t)where];
    own_block().acquired.insert(earlier.begin(), earlier.end());
    earlier.insert(block_number());
}

#define TT_HOOK(size)                                                                                    \
    void __tsan_read##size(void* p) { touch(p, size, false, false, __builtin_return_address(0)); }       \
    void __tsan_write##size(void* p) { touch(p, size, true, false, __builtin_return_address(0)); }       \
    void __tsan_unaligned_read##size(void* p) { touch(p, size, false, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##size(void* p) { touch(p, size, true, false, __builtin_return_address(0)); }
TT_HOOK(1) TT_HOOK(2) TT_HOOK(4) TT_HOOK(8) TT_HOOK(16)
void __tsan_read_range(void* p, size_t n) { touch(p, (unsigned)n, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { touch(p, (unsigned)n, true, false, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
#endif
