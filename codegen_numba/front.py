"""Kernel source to LLVM in one walk over its syntax tree.

Stage: codegen_numba.  In: a ``Source``.  Out: an llvmlite module with the function.  Kernel source is a Numba function and
means what Numba makes of it, but uses so little of Python (numbers, pointers, ``for`` over ranges, ``if``, ``while``, words)
that types are known as soon as they are met, and one walk can write what Numba's passes write in ten times the time,
its import not counted.  Whatever this file does not know raises ``UnknownError``; ``compile`` then asks Numba (``numba_front``),
and a test has both compile the same sources.  Read next: ``intrinsics`` (the words), ``compile``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from llvmlite import ir

from codegen_numba import parallel, target
from codegen_numba.intrinsics import Word
from codegen_numba.types import CPointer, IntegerLiteral, Type, boolean, float64, int64, uint64

I64 = ir.IntType(64)
#: Done now if both operands are constants: the sizes of scratch memory are written as products.
FOLDED: dict[str, Callable[[int, int], int]] = {"Add": operator.add, "Sub": operator.sub, "Mult": operator.mul}


class UnknownError(Exception):
    """Python this front does not translate."""


class Value(NamedTuple):
    type: Type
    v: Any
    literal: int | None = None  # of an integer constant


class Loop(NamedTuple):
    again: ir.Block
    done: ir.Block


def lower(
    name: str, text: str, params: list[tuple[str, Type]], words: dict[str, Any], alias: bool
) -> tuple[ir.Module, ir.Function]:
    """The function ``name`` of ``text``; ``params`` in order; pointers do not overlap unless ``alias``."""
    module = ir.Module(name)
    module.triple, module.data_layout = target.machine().triple, str(target.machine().target_data)
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [t.llvm for _, t in params]), f"{name}_inner")
    if not alias:
        for a in fn.args:
            if isinstance(a.type, ir.PointerType):
                a.add_attribute("noalias")
    Walk(fn, params, words, alias).body(ast.parse(text).body[0].body)  # type: ignore[attr-defined]
    return module, fn


class Walk:
    """One function: ``visit_X`` writes a statement, ``expr_X`` an expression, named after the classes of ``ast``."""

    def __init__(self, fn: ir.Function, params: list[tuple[str, Type]], words: dict[str, Any], alias: bool) -> None:
        self.words, self.alias = words, alias
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        self.places: dict[str, tuple[Type, ir.Value]] = {}
        self.loops: list[Loop] = []
        start = fn.append_basic_block("start")
        self.b.branch(start)
        self.b.position_at_end(start)
        for (name, t), a in zip(params, fn.args, strict=True):
            self.assign(name, Value(t, a))

    def body(self, lines: list[ast.stmt]) -> None:
        self.block(lines)
        if not self.b.block.is_terminated:
            self.b.ret_void()

    # --- variables ---
    def room(self, t: Type) -> ir.Value:
        with self.b.goto_entry_block():
            return self.b.alloca(t.llvm)

    def assign(self, name: str, value: Value) -> None:
        if name not in self.places:
            if value.type.kind == "void":
                unknown(name)
            self.places[name] = value.type, self.room(value.type)
        t, place = self.places[name]
        if t != value.type:
            unknown(f"{name} changes its type")
        self.b.store(value.v, place)

    # --- statements ---
    def block(self, lines: list[ast.stmt]) -> None:
        for line in lines:
            if self.b.block.is_terminated:
                return  # what stands behind a continue or break
            method: Callable[[Any], None] = getattr(self, f"visit_{type(line).__name__}", unknown)
            method(line)

    def visit_Assign(self, s: ast.Assign) -> None:
        if len(s.targets) != 1:
            unknown(s)
        to = s.targets[0]
        if isinstance(to, ast.Tuple) and isinstance(s.value, ast.Tuple):
            values = [self.plain(v) for v in s.value.elts]
            for t, v in zip(to.elts, values, strict=True):
                self.store(t, v)
        else:
            self.store(to, self.plain(s.value))

    def visit_AugAssign(self, s: ast.AugAssign) -> None:
        if isinstance(s.target, ast.Subscript):
            element, place = self.place(s.target)
            value = self.binary(s, Value(element, self.b.load(place)), self.plain(s.value))
            self.b.store(self.convert(value, element).v, place)
        elif isinstance(s.target, ast.Name):
            self.assign(s.target.id, self.binary(s, self.expr_Name(s.target), self.plain(s.value)))
        else:
            unknown(s)

    def store(self, to: ast.expr, value: Value) -> None:
        if isinstance(to, ast.Name):
            self.assign(to.id, value)
        elif isinstance(to, ast.Subscript):
            element, place = self.place(to)
            self.b.store(self.convert(value, element).v, place)
        else:
            unknown(to)

    def visit_Expr(self, s: ast.Expr) -> None:
        if not isinstance(s.value, ast.Constant):
            self.expr(s.value)

    def visit_Pass(self, s: ast.Pass) -> None:
        pass

    def visit_If(self, s: ast.If) -> None:
        yes, no, done = (self.b.append_basic_block(n) for n in ("then", "else", "endif"))
        self.b.cbranch(self.truth(s.test), yes, no)
        for block, lines in ((yes, s.body), (no, s.orelse)):
            self.b.position_at_end(block)
            self.block(lines)
            self.jump(done)
        self.b.position_at_end(done)

    def visit_While(self, s: ast.While) -> None:
        if s.orelse:
            unknown(s)
        head, inside, done = (self.b.append_basic_block(n) for n in ("while", "do", "endwhile"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.truth(s.test), inside, done)
        self.inside(inside, Loop(head, done), s.body)
        self.b.position_at_end(done)

    def visit_For(self, s: ast.For) -> None:
        call = s.iter
        if s.orelse or not isinstance(s.target, ast.Name) or not (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range" and not call.keywords
        ):
            unknown(s)
        bounds = [self.convert(self.plain(a), int64, only="int") for a in call.args]
        step = bounds.pop() if len(bounds) == 3 else Value(int64, I64(1), 1)
        first, stop = (Value(int64, I64(0)), *bounds)[-2:]
        at = self.room(int64)
        self.b.store(first.v, at)
        before = len(self.b.function.blocks)
        head, inside, again, done = (self.b.append_basic_block(n) for n in ("for", "do", "next", "endfor"))
        self.b.branch(head)
        self.b.position_at_end(head)
        i = self.b.load(at)
        more = self.b.icmp_signed("<", i, stop.v)
        if step.literal is None or step.literal < 1:
            up = self.b.icmp_signed(">", step.v, I64(0))
            more = self.b.select(up, more, self.b.icmp_signed(">", i, stop.v))
        self.b.cbranch(more, inside, done)
        self.b.position_at_end(inside)
        self.assign(s.target.id, Value(int64, i))
        self.inside(inside, Loop(again, done), s.body)
        self.b.position_at_end(again)
        self.b.store(self.b.add(self.b.load(at), step.v, flags=["nsw"]), at)
        back = self.b.branch(head)
        if parallel.is_promised(s.body) and not self.alias:
            parallel.promise(back, self.b.function.blocks[before:])
        self.b.position_at_end(done)

    def inside(self, block: ir.Block, loop: Loop, lines: list[ast.stmt]) -> None:
        self.b.position_at_end(block)
        self.loops.append(loop)
        self.block(lines)
        self.loops.pop()
        self.jump(loop.again)

    def jump(self, to: ir.Block) -> None:
        if not self.b.block.is_terminated:
            self.b.branch(to)

    def visit_Continue(self, s: ast.Continue) -> None:
        self.b.branch(self.loops[-1].again)

    def visit_Break(self, s: ast.Break) -> None:
        self.b.branch(self.loops[-1].done)

    # --- expressions ---
    def expr(self, e: ast.expr) -> Value:
        method: Callable[[Any], Value] = getattr(self, f"expr_{type(e).__name__}", unknown)
        return method(e)

    def plain(self, e: ast.expr) -> Value:
        """A value that can be stored."""
        value = self.expr(e)
        return value if value.type.kind != "void" else unknown(e)

    def truth(self, e: ast.expr) -> ir.Value:
        value = self.plain(e)
        if value.type is boolean:
            return value.v
        if value.type.kind == "int":
            return self.b.icmp_signed("!=", value.v, value.v.type(0))
        unknown(e)

    def expr_Constant(self, e: ast.Constant) -> Value:
        if isinstance(e.value, bool):
            return Value(boolean, ir.IntType(1)(int(e.value)))
        if isinstance(e.value, int) and e.value < 2**64:
            return Value(int64 if e.value < 2**63 else uint64, I64(e.value), e.value)
        if isinstance(e.value, float):
            return Value(float64, ir.DoubleType()(e.value))
        unknown(e)

    def expr_Name(self, e: ast.Name) -> Value:
        if e.id in self.places:
            t, place = self.places[e.id]
            return Value(t, self.b.load(place))
        if isinstance(self.words.get(e.id), float):
            return Value(float64, ir.DoubleType()(self.words[e.id]))
        unknown(e)

    def expr_UnaryOp(self, e: ast.UnaryOp) -> Value:
        if isinstance(e.op, ast.Not):
            return Value(boolean, self.b.not_(self.truth(e.operand)))
        x = self.plain(e.operand)
        if not isinstance(e.op, ast.USub):
            unknown(e)
        if x.literal is not None and x.literal <= 2**63:
            return Value(int64, I64(-x.literal), -x.literal)
        if x.type.kind == "float":
            return Value(x.type, self.b.fneg(x.v))
        if x.type is int64:
            return Value(int64, self.b.sub(I64(0), x.v))
        unknown(e)

    def expr_BoolOp(self, e: ast.BoolOp) -> Value:
        """The later operands only if the earlier ones leave it open."""
        at = self.room(boolean)
        done = self.b.append_basic_block("known")
        for operand in e.values:
            value = self.plain(operand)
            if value.type is not boolean:
                unknown(e)
            self.b.store(value.v, at)
            more = self.b.append_basic_block("more")
            self.b.cbranch(value.v, *((more, done) if isinstance(e.op, ast.And) else (done, more)))
            self.b.position_at_end(more)
        self.b.branch(done)
        self.b.position_at_end(done)
        return Value(boolean, self.b.load(at))

    def expr_BinOp(self, e: ast.BinOp) -> Value:
        return self.binary(e, self.plain(e.left), self.plain(e.right))

    def binary(self, e: ast.BinOp | ast.AugAssign, x: Value, y: Value) -> Value:
        op = type(e.op).__name__
        t = boolean if x.type == y.type == boolean and op.startswith("Bit") else common(x, y)
        if t is None or op == "Div" and t.kind != "float":
            unknown(e)
        if t is int64 and x.literal is not None and y.literal is not None and op in FOLDED:
            n = _wrapped(FOLDED[op](x.literal, y.literal), int64)
            return Value(int64, I64(n), n)
        a, b = self.convert(x, t).v, self.convert(y, t).v
        if t.kind == "float":
            name = {"Add": "fadd", "Sub": "fsub", "Mult": "fmul", "Div": "fdiv"}.get(op)
        else:
            name = {"Add": "add", "Sub": "sub", "Mult": "mul", "BitAnd": "and_", "BitOr": "or_", "BitXor": "xor",
                    "LShift": "shl", "RShift": "ashr" if t is int64 else None}.get(op)  # fmt: skip
        return Value(t, getattr(self.b, name)(a, b)) if name else unknown(e)

    def expr_Compare(self, e: ast.Compare) -> Value:
        op = {"Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!="}.get(type(e.ops[0]).__name__)
        x, y = self.plain(e.left), self.plain(e.comparators[0])
        if len(e.ops) != 1 or op is None:
            unknown(e)
        if x.type is boolean and y.type is boolean:
            return Value(boolean, self.b.icmp_unsigned(op, x.v, y.v)) if op in ("==", "!=") else unknown(e)
        t = float64 if {x.type.kind, y.type.kind} == {"int", "float"} and None not in (_literal(x), _literal(y)) else common(x, y)
        if t is None:
            unknown(e)
        a, b = self.convert(x, t).v, self.convert(y, t).v
        if t.kind == "float":
            compare = self.b.fcmp_unordered if op == "!=" else self.b.fcmp_ordered
        else:
            compare = self.b.icmp_signed if t.signed else self.b.icmp_unsigned
        return Value(boolean, compare(op, a, b))

    def place(self, e: ast.Subscript) -> tuple[Type, ir.Value]:
        base = self.plain(e.value)
        if not isinstance(base.type, CPointer):
            unknown(e)
        at = self.convert(self.plain(e.slice), int64, only="int")
        return base.type.element, self.b.gep(base.v, [at.v])

    def expr_Subscript(self, e: ast.Subscript) -> Value:
        element, place = self.place(e)
        return Value(element, self.b.load(place))

    def expr_Call(self, e: ast.Call) -> Value:
        word = self.words.get(e.func.id) if isinstance(e.func, ast.Name) and not e.keywords else None
        if word is None or isinstance(word, float) or isinstance(e.func, ast.Name) and e.func.id in self.places:
            unknown(e)
        args = [self.plain(a) for a in e.args]
        if isinstance(word, Type):
            return self.convert(args[0], word) if len(args) == 1 else unknown(e)
        seen = [IntegerLiteral(a.literal) if word.literal and a.literal is not None else a.type for a in args]
        signature = word.typed(*seen) if isinstance(word, Word) else None
        if signature is None or len(signature.args) != len(args):
            unknown(e)
        values = [self.convert(a, t).v for a, t in zip(args, signature.args, strict=True)]
        return Value(signature.return_type, word.write(self.b, signature, values))

    # --- types ---
    def convert(self, x: Value, t: Type, only: str = "") -> Value:
        """As Numba converts, where that is defined for all values."""
        have, b = x.type, self.b
        if only and have.kind != only:
            unknown(f"{have.name} where {only} is wanted")
        if have == t or isinstance(t, IntegerLiteral):
            return x
        match have.kind, t.kind:
            case "int", "int":
                if x.literal is not None:
                    return Value(t, t.llvm(_wrapped(x.literal, t)), x.literal)
                if t.bits == have.bits:
                    return Value(t, x.v)
                return Value(t, b.trunc(x.v, t.llvm) if t.bits < have.bits else (b.sext if have.signed else b.zext)(x.v, t.llvm))
            case "int", "float":
                return Value(t, (b.sitofp if have.signed else b.uitofp)(x.v, t.llvm))
            case "bool", "int":
                return Value(t, b.zext(x.v, t.llvm))
            case "float", "float":
                return Value(t, (b.fpext if t.bits > have.bits else b.fptrunc)(x.v, t.llvm))
        unknown(f"{have.name} as {t.name}")


def common(x: Value, y: Value) -> Type | None:
    """The type two operands are brought to: 64 bits for integers, the wider one for floats; None if in doubt."""
    a, b = x.type, y.type
    if a.kind == b.kind == "float":
        return a if a.bits >= b.bits else b
    if a.kind == b.kind == "int":
        if a.signed == b.signed:
            return int64 if a.signed else uint64
        unsigned, signed = (b, a) if a.signed else (a, b)
        return int64 if unsigned.bits < 64 and signed.bits == 64 else None
    return int64 if {a.kind, b.kind} == {"bool", "int"} and int64 in (a, b) else None


def _literal(x: Value) -> Any:
    """Something that is not None for floats and for integer constants."""
    return 0 if x.type.kind == "float" else x.literal


def _wrapped(n: int, t: Type) -> int:
    n &= (1 << t.bits) - 1
    return n - (1 << t.bits) if t.signed and n >> (t.bits - 1) else n


def unknown(what: Any) -> NoReturn:
    raise UnknownError(ast.unparse(what) if isinstance(what, ast.AST) else what)
