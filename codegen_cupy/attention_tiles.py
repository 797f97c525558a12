"""How attention kernels may divide their work: the configs a device and a head size allow, and what they take.

Stage: codegen_cupy.  In: head size.  Out: ``Tiles``, the default (the fastest one measured) first.  A group of four warps
multiplies by ``wgmma`` where there is such a thing (compute capability 9.0, and the emulator); elsewhere each warp for
itself by ``mma.sync``.
Read next: ``attention``.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_cupy import cuda_machine
from tinytorch.device import cuda_available, emulated

#: What a block may use of shared memory on compute capability 9.0 (8.0 allows 163 KiB).
SHARED_LIMIT = 227 << 10


@dataclass(frozen=True)
class Tiles:
    """How a kernel divides its work: ``warps`` times 16 ``m`` rows of its own, ``other`` rows a step of what it walks
    over, ``stages`` tiles in shared memory, ``resident`` blocks a multiprocessor should hold (which caps registers)."""

    warps: int = 4
    m: int = 2
    other: int = 64
    stages: int = 2
    resident: int = 2
    registers: bool = False  # keep the own rows' operands in registers
    groups: bool = False  # products by four warps together (``wgmma``): compute capability 9.0; m is 1
    ahead: bool = False  # forward: begin the next tile's scores before this tile's weights are multiplied


def has_wgmma() -> bool:
    """Do groups of four warps multiply together here?  On compute capability 9.0, and on the emulator."""
    return emulated() or not cuda_available() or cuda_machine.architecture() == "sm_90a"


def may_group(d: int, most: int = 256) -> bool:
    """Is there ``wgmma``, and are the head's rows, padded to 64s, worth it and not too long for the registers?"""
    return 32 < d <= most and has_wgmma()


def forward_tiles(d: int) -> list[Tiles]:
    return [*(_group_forward(d) if may_group(d) else ()), *_warp_forward(d)]


def keys_tiles(d: int) -> list[Tiles]:
    """For gradients of keys and values; own rows are columns of the scores."""
    return [*(_group_keys(d) if may_group(d, 128) else ()), *_warp_keys(d)]


def queries_tiles(d: int) -> list[Tiles]:
    """For gradients of queries."""
    return [*(_group_queries(d) if may_group(d) else ()), *_warp_queries(d)]


def fused_tiles(d: int) -> list[Tiles]:
    """For all gradients at once."""
    return [t for t in [*(_group_fused(d) if may_group(d, 128) else ()), *_warp_fused(d)] if shares_evenly(d, t)]


def shares_evenly(d: int, t: Tiles) -> bool:
    """Can the warps divide a tile of dQ, ``other`` rows by ``d`` columns, into equal parts of whole 16s?"""
    row_parts = t.other // 16
    return t.warps % row_parts == 0 and padded(d, t) % (16 * (t.warps // row_parts)) == 0


def _group(warps: int, other: int, stages: int, resident: int, *, held: bool, ahead: bool = False) -> Tiles:
    return Tiles(warps, 1, other, stages, resident, held, True, ahead)


def _group_forward(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            _group(8, 64, 2, 2, held=False, ahead=True), _group(8, 64, 2, 2, held=True), _group(4, 64, 2, 3, held=True, ahead=True),
            _group(4, 128, 2, 2, held=True, ahead=True), _group(16, 64, 2, 1, held=False, ahead=True),
            _group(12, 128, 2, 1, held=False), _group(12, 128, 2, 1, held=False, ahead=True),
            _group(12, 64, 3, 1, held=True, ahead=True), _group(8, 128, 2, 1, held=True, ahead=True),
        ]  # fmt: skip
    if d > 128:
        return [
            _group(8, 64, 2, 1, held=False, ahead=True), _group(8, 64, 2, 1, held=False), _group(4, 64, 2, 1, held=False, ahead=True),
            _group(4, 64, 2, 1, held=False),
        ]  # fmt: skip
    return [
        _group(4, 64, 2, 2, held=True, ahead=True), _group(8, 128, 2, 1, held=False, ahead=True),
        _group(12, 64, 2, 1, held=False), _group(8, 128, 2, 1, held=False), _group(12, 64, 2, 1, held=False, ahead=True),
        _group(8, 64, 2, 1, held=True, ahead=True), _group(8, 64, 2, 1, held=False, ahead=True),
    ]  # fmt: skip


def _warp_forward(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            Tiles(4, 2, 64, 2, 2, True), Tiles(4, 2, 64, 2, 2, False), Tiles(4, 2, 128, 2, 1, False),
            Tiles(4, 1, 64, 2, 3, True), Tiles(8, 1, 64, 2, 2, True), Tiles(8, 1, 128, 2, 1, True),
            Tiles(4, 2, 32, 2, 2, True), Tiles(4, 2, 64, 3, 2, True), Tiles(8, 2, 64, 2, 1, True),
            Tiles(4, 1, 128, 2, 2, True), Tiles(8, 2, 64, 3, 1, False), Tiles(4, 2, 32, 2, 2, True, ahead=True),
            Tiles(8, 1, 64, 2, 1, True, ahead=True), Tiles(4, 2, 64, 2, 2, True, ahead=True), Tiles(8, 2, 32, 2, 1, True, ahead=True),
            Tiles(4, 1, 64, 2, 3, True, ahead=True),
        ]  # fmt: skip
    if d <= 128:
        return [
            Tiles(8, 1, 64, 2, 1), Tiles(4, 2, 32, 2, 2), Tiles(4, 1, 64, 2, 2), Tiles(4, 2, 64, 2, 1), Tiles(8, 1, 64, 2, 1, True),
            Tiles(8, 1, 32, 2, 1, True, ahead=True), Tiles(8, 1, 64, 2, 1, ahead=True),
        ]  # fmt: skip
    return [Tiles(8, 1, 32, 2, 1), Tiles(4, 1, 32, 2, 1), Tiles(4, 1, 64, 2, 1)]


def _group_keys(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            _group(4, 64, 2, 2, held=False), _group(8, 128, 2, 1, held=False), _group(12, 64, 2, 1, held=False),
            _group(8, 64, 2, 1, held=True), _group(4, 64, 2, 2, held=True), _group(8, 64, 2, 1, held=False), _group(8, 64, 3, 1, held=False),
        ]  # fmt: skip
    return [_group(8, 64, 2, 1, held=False), _group(4, 64, 2, 1, held=False)]


def _warp_keys(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            Tiles(8, 1, 64, 2, 1, True), Tiles(4, 1, 64, 2, 2, True), Tiles(4, 1, 64, 2, 2, False),
            Tiles(4, 2, 32, 2, 2, False), Tiles(8, 2, 32, 2, 1, False), Tiles(8, 1, 32, 2, 1, True),
            Tiles(4, 1, 32, 2, 3, True), Tiles(8, 1, 64, 3, 1, True), Tiles(4, 2, 64, 2, 1, False),
        ]  # fmt: skip
    if d <= 128:
        return [Tiles(8, 1, 32, 2, 1), Tiles(4, 1, 32, 2, 1), Tiles(4, 1, 64, 2, 1)]
    return [Tiles(4, 1, 16, 2, 1), Tiles(8, 1, 16, 2, 1)]


def _group_queries(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            _group(4, 64, 2, 3, held=False), _group(8, 64, 2, 2, held=False), _group(8, 128, 2, 1, held=False),
            _group(12, 64, 2, 1, held=True), _group(8, 64, 2, 1, held=True),
        ]  # fmt: skip
    if d > 128:
        return [_group(4, 64, 2, 1, held=False), *([_group(8, 64, 2, 1, held=False)] if d <= 192 else ())]
    return [_group(4, 64, 2, 2, held=False), _group(8, 64, 2, 1, held=False), _group(8, 64, 2, 1, held=True)]


def _warp_queries(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            Tiles(4, 2, 64, 2, 2, False), Tiles(8, 1, 64, 2, 1, True), Tiles(4, 1, 64, 2, 3, True),
            Tiles(4, 2, 32, 2, 2, False), Tiles(8, 2, 32, 2, 1, False), Tiles(4, 1, 64, 2, 2, True),
            Tiles(4, 2, 32, 2, 2, True), Tiles(8, 2, 64, 2, 1, False),
        ]  # fmt: skip
    if d <= 128:
        return [Tiles(8, 1, 64, 2, 1), Tiles(4, 1, 64, 2, 1), Tiles(4, 2, 32, 2, 1)]
    return [Tiles(4, 1, 32, 2, 1), Tiles(4, 1, 16, 2, 1)]


def _group_fused(d: int) -> list[Tiles]:
    if d <= 64:
        return [_group(8, 64, 2, 1, held=False), _group(4, 64, 2, 2, held=False)]
    return [_group(8, 64, 2, 1, held=False)]


def _warp_fused(d: int) -> list[Tiles]:
    if d <= 64:
        return [
            Tiles(8, 1, 64, 2, 1, True), Tiles(8, 1, 64, 2, 1, False), Tiles(4, 1, 64, 2, 2, True),
            Tiles(4, 1, 64, 2, 2, False), Tiles(8, 1, 32, 2, 1, True), Tiles(8, 2, 32, 2, 1, False),
            Tiles(4, 2, 32, 2, 2, False), Tiles(8, 1, 128, 2, 1, False), Tiles(4, 2, 64, 2, 1, False),
        ]  # fmt: skip
    if d <= 128:
        return [Tiles(8, 1, 32, 2, 1), Tiles(8, 1, 64, 2, 1), Tiles(4, 1, 32, 2, 1), Tiles(4, 1, 64, 2, 1)]
    return [Tiles(4, 1, 16, 2, 1)]


# --- what they take ---------------------------------------------------------------------------------------------------
def own_rows(tiles: Tiles) -> int:
    return 16 * tiles.m * tiles.warps


def padded(d: int, tiles: Tiles) -> int:
    """The head size a tile has room for: whole steps of a product, whole panels of 64 columns for groups."""
    unit = 64 if tiles.groups else 16
    return -(-d // unit) * unit


def room(d: int, rows: int, tiles: Tiles) -> int:
    """What a tile takes of shared memory, in bytes."""
    return 2 * rows * (padded(d, tiles) + (0 if tiles.groups else 8))


def forward_shared(d: int, tiles: Tiles) -> int:
    return room(d, own_rows(tiles) + 2 * tiles.stages * tiles.other, tiles)


def keys_shared(d: int, tiles: Tiles, *, atomic: bool = False) -> int:
    walked = tiles.stages * tiles.other
    weights = own_rows(tiles) * (tiles.other + 8) * 2 if atomic else 0
    return room(d, 2 * own_rows(tiles) + 2 * walked, tiles) + 2 * walked * 4 + weights


def queries_shared(d: int, tiles: Tiles) -> int:
    return room(d, 2 * own_rows(tiles) + 2 * tiles.stages * tiles.other, tiles)
