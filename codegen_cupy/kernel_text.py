"""From statements to a whole translation unit: signature, comments, helpers.

Stage: codegen.  In: an ``Emitter`` that has written a body.  Out: ``Source``, text plus how to launch it.
Read next: ``pointwise`` and ``rows`` (bodies), ``nvrtc`` and ``emulate`` (what becomes of the text).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from codegen_cupy.body import Emitter
from codegen_cupy.helpers import needed
from codegen_cupy.spell import memory_type, safe
from compiler.loop.ir import Buffer, Int, Kernel

#: The ``device`` of a kernel's buffer that is no memory of the device: the state of a random stream, [seed, offset].
HOST = "host"


@dataclass(frozen=True)
class Scratch:
    """Memory a launch needs besides its buffers: ``items`` elements of ``itemsize`` bytes, zero before the first
    launch if ``zeroed`` (the kernel leaves it zero again)."""

    name: str
    ctype: str
    items: Int
    itemsize: int
    zeroed: bool = False


@dataclass(frozen=True)
class Source:
    """A kernel ready to compile.  Its arguments are ``buffers``, then ``sizes``, then ``scratch``, then ``failed``."""

    name: str
    text: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    size_bytes: int
    scratch: tuple[Scratch, ...]
    messages: tuple[str, ...]
    block: tuple[int, int]
    work: Int  # blocks wanted
    split: int = 1  # grid y
    max_blocks: int = 2**31 - 1
    shared: int = 0  # bytes of shared memory that the launch gives
    lines: tuple[str, ...] = ()  # the user's, of a kernel with checks
    words: tuple[int, ...] = ()  # places of buffers that are two numbers of the host, passed as they are


def finish(
    e: Emitter, name: str, *, work: Int, block: tuple[int, int], scratch: tuple[Scratch, ...] = (), split: int = 1,
    max_blocks: int = 2**31 - 1, shared: int = 0,
) -> Source:  # fmt: skip
    """Wrap the emitted body into a kernel function."""
    body = "\n".join(e.lines)
    buffers = tuple(b for b in e.kernel.params if re.search(rf"\b{safe(b.name)}\b", body))
    sizes = tuple(s for s in e.kernel.sizes if re.search(rf"\b{safe(s)}\b", body))
    params = [_parameter(e, b) for b in buffers]
    params += [f"{e.int_type} {safe(s)}" for s in sizes]
    params += [f"{s.ctype}* {s.name}" for s in scratch]
    if e.messages:
        params.append("long long* failed")
    threads = block[0] * block[1]
    resident = f", {e.schedule.resident}" if e.schedule.resident else ""
    together = f"__cluster_dims__(1, {e.schedule.cluster}, 1) " if e.schedule.cluster > 1 else ""
    head = f'extern "C" __global__ void {together}__launch_bounds__({threads}{resident}) {name}('
    signature = head + ", ".join(params) + ") {"
    if len(signature) > 110:
        signature = head + "\n    " + ",\n    ".join(params) + ") {"
    lines = user_lines(e.kernel)
    code = f"{_comment(e.kernel, lines)}{signature}\n{body}\n}}\n"
    helpers = needed(code)
    return Source(
        name=name, text=f"{helpers}\n\n{code}" if helpers else code, buffers=tuple(b.name for b in buffers), sizes=sizes,
        size_bytes=8 if e.schedule.wide else 4, scratch=scratch, messages=tuple(e.messages), block=block, work=work,
        split=split, max_blocks=max_blocks, shared=shared, lines=lines if e.messages else (),
        words=tuple(i for i, b in enumerate(buffers) if b.device == HOST),
    )  # fmt: skip


def _parameter(e: Emitter, b: Buffer) -> str:
    if b.device == HOST:
        return f"const TwoWords {safe(b.name)}"
    const = "" if b.name in e.kernel.writes else "const "
    restrict = " __restrict__" if e.schedule.restrict else ""
    return f"{const}{memory_type(b.dtype)}*{restrict} {safe(b.name)}"


def user_lines(kernel: Kernel) -> tuple[str, ...]:
    """What the user wrote, and where."""
    return tuple(f"{text.strip()}    {file.rsplit('/', 1)[-1]}:{line}" for file, line, text in kernel.lines)


def _comment(kernel: Kernel, lines: tuple[str, ...]) -> str:
    return "".join(f"// {line}\n" for line in lines) or (f"// {', '.join(kernel.origin)}\n" if kernel.origin else "")
