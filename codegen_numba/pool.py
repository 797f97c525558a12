"""The native half of a call: a list of phases run back to back, large ones shared with threads that wait in C.

Stage: codegen_numba.  In: two blocks of int64 that ``build`` laid out, the *program* (what to launch with which
slots) and the *table* (addresses, sizes, counts).  Out: the phases have run, or one has reported an error.  Both
functions are kernel source like any other, so this is the whole scheduler.  Workers are Python threads parked inside
``worker`` without the interpreter lock: waking one costs microseconds, and no OpenMP is involved, so any number of
Python threads may call at once (one gets the workers, the others run alone) and a fork is harmless.
Read next: ``runtime`` (the Python half).
"""

from __future__ import annotations

from textwrap import indent

from codegen_numba.compile import Source

# --- layout of a pool, in int64 words; hot words have a cache line each ---
TICKET, LEFT, JOB, MUTEX, COND, SLEEPERS, BUSY, GENERATION = 0, 8, 16, 24, 32, 40, 48, 56
WORDS = 64
#: Words of a program record before its slots: entry, number of slots, slot of the extent, slot of the parts, alignment.
HEAD = 5
CLOSED = 1 << 30
#: In place of the alignment: run this record after an error too.
ALWAYS = -1

# A ticket is (generation << 32) + the next part.  Claiming one by compare-and-swap proves that the job read just
# before is of that generation: a new job closes the ticket first, and is posted only when all old parts are done.
TAKE = f"""\
while True:
    ticket = atomic_load(pool, {TICKET})
    p = ticket & 0xFFFFFFFF
    if ticket >> 32 != generation or p >= {CLOSED} or p >= pool[{JOB} + 3]:
        break
    entry, args, extent, chunk = pool[{JOB}], pool[{JOB} + 1], pool[{JOB} + 2], pool[{JOB} + 4]
    if compare_and_swap(pool, {TICKET}, ticket, ticket + 1):
        call(entry, as_pointer(args), least(p * chunk, extent), least(p * chunk + chunk, extent), p)
        atomic_add(pool, {LEFT}, -1)
"""

SHARE = f"""\
generation = pool[{GENERATION}] + 1
atomic_store(pool, {TICKET}, (generation << 32) + {CLOSED})
pool[{JOB}], pool[{JOB} + 1], pool[{JOB} + 2] = program[at], as_integer(slots), extent
pool[{JOB} + 3], pool[{JOB} + 4] = parts, chunk
atomic_store(pool, {LEFT}, parts)
atomic_store(pool, {TICKET}, generation << 32)
atomic_store(pool, {GENERATION}, generation)
if atomic_load(pool, {SLEEPERS}) > 0:
    mutex_lock(pool, {MUTEX})
    cond_broadcast(pool, {COND})
    mutex_unlock(pool, {MUTEX})
{TAKE}\
spins = 0
while atomic_load(pool, {LEFT}) > 0:
    spins += 1
    if spins < 4000:
        pause()
    else:
        yield_thread()
"""

EXECUTE = f"""\
def execute(program, table, cell, room, start, stop, part):
    # run the records of the program that begin in [start, stop); table[0] is the error word, table[2] gets who set it;
    # after an error only records that undo something are run
    at = start
    pool = as_pointer(cell[0])
    failed = 0
    while at < stop:
        count = program[at + 1]
        align = program[at + 4]
        if failed == 0 or align == {ALWAYS}:
            slots = room
            for k in range(count):
                slots[k] = table[program[at + {HEAD} + k]]
            extent = table[program[at + 2]]
            parts = table[program[at + 3]]
            align = greatest(align, 1)
            chunk = quotient(quotient(extent + parts - 1, parts) + align - 1, align) * align
            if parts > 1 and cell[0] != 0 and compare_and_swap(pool, {BUSY}, 0, 1):
{indent(SHARE, " " * 16)}\
                atomic_store(pool, {BUSY}, 0)
            else:
                for p in range(parts):
                    call(program[at], slots, least(p * chunk, extent), least(p * chunk + chunk, extent), p)
            if table[0] != 0 and failed == 0:
                failed = 1
                table[2] = at
        at += {HEAD} + count
"""

WORKER = f"""\
def worker(pool, start, stop, part):
    # the life of a worker: wait for the next generation, briefly awake and then asleep, and take part in it
    generation = start
    while True:
        spins = 0
        while atomic_load(pool, {GENERATION}) == generation and spins < 2000:
            pause()
            spins += 1
        if atomic_load(pool, {GENERATION}) == generation:
            mutex_lock(pool, {MUTEX})
            atomic_add(pool, {SLEEPERS}, 1)
            while atomic_load(pool, {GENERATION}) == generation:
                cond_wait(pool, {COND}, {MUTEX})
            atomic_add(pool, {SLEEPERS}, -1)
            mutex_unlock(pool, {MUTEX})
        generation = atomic_load(pool, {GENERATION})
{indent(TAKE, " " * 8)}"""

SOURCES: dict[str, Source] = {
    "execute": Source(
        "execute", EXECUTE, (("program", "int64"), ("table", "int64"), ("cell", "int64"), ("room", "int64")),
        alias=True, pool=True,
    ),
    "worker": Source("worker", WORKER, (("pool", "int64"),), alias=True, pool=True),
}  # fmt: skip
