"""Random Python functions over the constructs that capture takes: a seed in, the text of a program out.

Every program is ``f(x, y, items, table, box, n)``: two tensors, a list, a dict, an object and a number.  It reads and
writes all of them, through control flow, closures, exceptions, aliases and breaks, and returns what it has at hand.
"""

from __future__ import annotations

import random
from typing import Any

import tinytorch as torch
from compiler.capture import entry

LOG: list[Any] = []


@entry.disable
def act(*what: Any) -> int:
    """A call that is not compiled, and shows when it happened."""
    LOG.append(what)
    return len(what)


class Box:
    kind = "box"

    def __init__(self) -> None:
        self.v = 1
        self.items = [0]

    @property
    def twice(self) -> int:
        return self.v * 2

    def bump(self, by: int = 1) -> int:
        self.v += by
        return self.v

    def __getitem__(self, i: int) -> int:
        return self.items[i]

    def __len__(self) -> int:
        return len(self.items)

    def __enter__(self) -> Box:
        self.items.append(-1)
        return self

    def __exit__(self, *exc: object) -> bool:
        self.items.append(-2)
        return exc[0] is KeyError


class Program:
    """Writes one function.  Names of each type that are certainly bound are in ``self.have``."""

    def __init__(self, seed: int, breaks: bool = True) -> None:
        self.r = random.Random(seed)
        self.breaks = breaks
        self.lines: list[str] = []
        self.have: dict[str, list[str]] = {
            "t": ["x", "y"], "i": ["n"], "l": ["items"], "d": ["table"], "b": ["box"], "f": [],
        }  # fmt: skip
        self.count = 0
        self.depth = 0
        self.in_loop = False

    def text(self) -> str:
        self.lines = ["def f(x, y, items, table, box, n):"]
        self.depth = 1
        for _ in range(self.r.randint(3, 9)):
            self.statement()
        result = ", ".join(self.r.sample(self.have["t"], min(3, len(self.have["t"]))))
        self.emit(f"return {result}, {self.int_()}, {self.pick('l')}, {self.pick('d')}, box.v")
        return "\n".join(self.lines) + "\n"

    # --- pieces ---
    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def pick(self, kind: str) -> str:
        return self.r.choice(self.have[kind])

    def int_(self, level: int = 0) -> str:
        choices = [
            lambda: str(self.r.randint(-2, 5)), lambda: self.pick("i"), lambda: f"len({self.pick('l')})",
            lambda: f"{self.pick('t')}.shape[{self.r.choice(['0', '-1'])}]", lambda: "box.v", lambda: "box.twice",
            lambda: f"len({self.pick('d')})",
        ]  # fmt: skip
        if level < 2:
            choices += [
                lambda: f"({self.int_(level + 1)} {self.r.choice('+-*')} {self.int_(level + 1)})",
                lambda: f"({self.int_(level + 1)} % 7)", lambda: f"max({self.int_(level + 1)}, 1)",
                lambda: f"({self.int_(level + 1)} if {self.cond(level + 1)} else {self.int_(level + 1)})",
                lambda: f"sum(v for v in range({self.r.randint(0, 4)}) if v != {self.r.randint(0, 3)})",
                lambda: f"{self.pick('d')}.get({self.r.choice('abc')!r}, {self.int_(level + 1)})",
                lambda: "box.bump()", lambda: f"int({self.r.choice(['3.7', 'True'])})",
            ]  # fmt: skip
            if self.have["f"]:
                choices.append(lambda: f"{self.pick('f')}({self.int_(level + 1)})")
        return self.r.choice(choices)()

    def cond(self, level: int = 0) -> str:
        choices = [
            lambda: f"{self.int_(level + 1)} {self.r.choice(['<', '>', '==', '!=', '<='])} {self.int_(level + 1)}",
            lambda: f"{self.r.choice('abc')!r} in {self.pick('d')}", lambda: f"not {self.pick('l')}",
            lambda: f"isinstance(box, {self.r.choice(['object', 'int'])})", lambda: "hasattr(box, 'extra')",
        ]  # fmt: skip
        if level < 1:
            choices.append(lambda: f"({self.cond(level + 1)}) {self.r.choice(['and', 'or'])} ({self.cond(level + 1)})")
        return self.r.choice(choices)()

    def tensor(self, level: int = 0) -> str:
        """All tensors here are (3, 4)."""
        choices = [
            lambda: self.pick("t"), lambda: f"({self.pick('t')} * {self.r.choice(['0.5', '2', '-1.5'])})",
            lambda: f"({self.pick('t')} + {self.int_(1)} % 5)", lambda: f"{self.pick('t')}.clone()",
        ]  # fmt: skip
        if level < 2:
            choices += [
                lambda: f"({self.tensor(level + 1)} {self.r.choice('+-*')} {self.tensor(level + 1)})",
                lambda: f"torch.where({self.pick('t')} > 0, {self.tensor(level + 1)}, {self.tensor(level + 1)})",
                lambda: f"{self.tensor(level + 1)}.clamp(-3.0, 3.0)", lambda: f"torch.tanh({self.tensor(level + 1)})",
                lambda: f"({self.pick('t')} - {self.tensor(level + 1)}.mean(dim=1, keepdim=True))",
                lambda: f"{self.pick('t')}.t().reshape(3, 4)", lambda: f"torch.stack([{self.pick('t')}[i] for i in (2, 0, 1)])",
                lambda: f"torch.cat([{self.pick('t')}[1:], {self.pick('t')}[:1]])",
            ]  # fmt: skip
        return self.r.choice(choices)()

    def key(self) -> str:
        return repr(self.r.choice("abc"))

    # --- statements ---
    def statement(self) -> None:
        options = [
            (4, self.assign_tensor), (2, self.assign_int), (2, self.in_place), (2, self.list_change), (2, self.dict_change),
            (1, self.attribute), (1, self.view_write), (1, self.alias), (0.5, self.set_), (0.3, self.checked), (0.5, self.chance),
        ]  # fmt: skip
        if self.depth < 4:
            options += [(2, self.if_), (1, self.for_), (1, self.while_), (1, self.try_), (1, self.with_), (1, self.closure),
                        (1, self.match_)]  # fmt: skip
        if self.breaks:
            options += [(1, self.break_), (0.5, self.tensor_branch), (0.3, self.item)]
        weights = [w for w, _ in options]
        self.r.choices([s for _, s in options], weights)[0]()

    def block(self, lines: int = 2) -> None:
        """An indented block; names bound in it are not certain afterwards."""
        saved = {k: list(v) for k, v in self.have.items()}
        self.depth += 1
        for _ in range(self.r.randint(1, lines)):
            self.statement()
        self.depth -= 1
        self.have = saved

    def assign_tensor(self) -> None:
        text = self.tensor()
        name = self.pick("t") if self.r.random() < 0.3 else self.fresh("t")
        self.emit(f"{name} = {text}")
        if name not in self.have["t"]:
            self.have["t"].append(name)

    def assign_int(self) -> None:
        text = self.int_()
        name = self.fresh("i")
        self.emit(f"{name} = {text}")
        self.have["i"].append(name)

    def in_place(self) -> None:
        t = self.pick("t")
        self.emit(self.r.choice([f"{t} += {self.tensor(1)}", f"{t}.mul_(0.5)", f"{t}.add_({self.pick('t')}, alpha=2)", f"{t} *= 2"]))

    def view_write(self) -> None:
        t = self.pick("t")
        self.emit(self.r.choice([
            f"{t}[0] = {self.r.randint(0, 3)}", f"{t}[1:].mul_(2)", f"{t}[:, 0] += 1", f"{t}[{t} > 1] = 0.5",
        ]))  # fmt: skip

    def alias(self) -> None:
        name = self.fresh("t")
        self.emit(f"{name} = {self.pick('t')}")
        self.have["t"].append(name)

    def list_change(self) -> None:
        if self.r.random() < 0.3:
            name = self.fresh("l")
            self.emit(f"{name} = {self.r.choice([f'[{self.int_()}, {self.int_()}]', f'[v * 2 for v in range({self.r.randint(0, 3)})]', f'list({self.pick(chr(108))})'])}")
            self.have["l"].append(name)
            return
        li = self.pick("l")
        self.emit(self.r.choice([
            f"{li}.append({self.int_()})", f"{li}.extend([1, {self.int_()}])", f"{li}.insert(0, {self.int_()})",
            f"{li}[-1:] = [7]", f"{li}.reverse()", f"{li} += [3]", f"{li}.sort()", f"del {li}[:1]",
        ]))  # fmt: skip

    def dict_change(self) -> None:
        if self.r.random() < 0.2:
            name = self.fresh("d")
            self.emit(f"{name} = {{**{self.pick('d')}, {self.key()}: {self.int_()}}}")
            self.have["d"].append(name)
            return
        d = self.pick("d")
        self.emit(self.r.choice([
            f"{d}[{self.key()}] = {self.int_()}", f"{d}.pop({self.key()}, None)", f"{d}.setdefault({self.key()}, {self.int_()})",
            f"{d}.update({self.r.choice('abc')}={self.int_()})", f"{d} |= {{{self.key()}: 1}}",
            f"{d} = dict(sorted({d}.items()))",
        ]))  # fmt: skip

    def attribute(self) -> None:
        self.emit(self.r.choice([
            f"box.v = {self.int_()} % 9", "box.bump(2)", f"box.extra = {self.int_()}", f"box.items.append({self.int_()} % 5)",
            "setattr(box, 'extra', box.v)",
        ]))  # fmt: skip

    def set_(self) -> None:
        name = self.fresh("s")
        self.emit(f"{name} = {{{self.int_(1)}, {self.int_(1)}, *{self.pick('l')}}}")
        self.emit(self.r.choice([f"{name}.add({self.int_(1)})", f"{name}.discard({self.int_(1)})", f"{name} ^= {{1, 9, 17}}"]))
        self.emit(f"items.extend({name})")

    def checked(self) -> None:
        """An index that may be out of range, known only when the graph runs."""
        text = f"{self.pick('t')}[torch.tensor([{self.int_(1)} % 4])]"
        if self.r.random() < 0.3:
            self.emit(f"{self.pick('t')}.add_({text})")
            return
        self.emit("try:")
        self.depth += 1
        self.emit("box.bump()")
        self.emit(f"{self.pick('t')}.mul_({text})")
        self.depth -= 1
        self.emit("except IndexError:")
        self.block(1)

    def chance(self) -> None:
        name = self.fresh("i")
        self.emit(f"{name} = " + self.r.choice(["random.randint(0, 9)", "random.choice([1, 2, 5])", "int(random.random() * 4)"]))
        self.have["i"].append(name)
        if self.r.random() < 0.3:
            self.emit(f"if {name} > 2:")
            self.block(1)

    def if_(self) -> None:
        self.emit(f"if {self.cond()}:")
        self.block()
        if self.r.random() < 0.6:
            self.emit("else:")
            self.block()

    def for_(self) -> None:
        v = self.fresh("i")
        over = self.r.choice([
            f"range({self.r.randint(0, 3)})", "[2, 0, 1]", f"list({self.pick('l')})[:2]",
        ])  # fmt: skip
        pairs = self.r.random() < 0.3
        self.emit(f"for {'k, ' if pairs else ''}{v} in {f'enumerate({over})' if pairs else over}:")
        self.have["i"].append(v)
        self.depth += 1
        if self.r.random() < 0.3:
            self.emit(f"if {v} == 1: {self.r.choice(['continue', 'break'])}")
        self.depth -= 1
        self.block()
        self.have["i"].remove(v)

    def while_(self) -> None:
        v = self.fresh("i")
        self.emit(f"{v} = {self.r.randint(0, 3)}")
        self.emit(f"while {v} > 0:")
        self.depth += 1
        self.emit(f"{v} -= 1")
        self.depth -= 1
        self.block()
        self.have["i"].append(v)

    def try_(self) -> None:
        self.emit("try:")
        self.block()
        self.depth += 1
        kind = self.r.choice(["raise ValueError('v')", "1 // 0", "{}['q']", "pass", f"{self.pick('t')} @ torch.ones(77, 1)"])
        if self.r.random() < 0.6:
            self.emit(f"if {self.cond()}: {kind}" if kind != "pass" else kind)
        self.depth -= 1
        self.emit("except (ValueError, KeyError, RuntimeError) as e:")
        self.depth += 1
        self.emit("items.append(len(type(e).__name__))")
        self.depth -= 1
        self.emit("except ZeroDivisionError:")
        self.block(1)
        if self.r.random() < 0.5:
            self.emit("finally:")
            self.depth += 1
            self.emit("box.v += 1")
            self.depth -= 1

    def with_(self) -> None:
        self.emit(f"with {self.r.choice(['box', 'torch.no_grad()', 'box as held, torch.no_grad()'])}:")
        self.block()

    def closure(self) -> None:
        f, v = self.fresh("f"), self.fresh("i")
        self.emit(f"{v} = {self.int_()}")
        self.emit(f"def {f}(a, b={self.r.randint(0, 3)}):")
        self.depth += 1
        self.emit(f"nonlocal {v}")
        self.emit(f"{v} += a % 3")
        self.emit(f"return {v} + b")
        self.depth -= 1
        self.have["i"].append(v)
        self.have["f"].append(f)

    def match_(self) -> None:
        self.emit(f"match {self.r.choice([self.int_(), f'({self.int_()}, 2)', self.pick('d')])}:")
        self.depth += 1
        for pattern in ("0 | 1", "(a, 2)", "{'a': a}", "_"):
            self.emit(f"case {pattern}:")
            self.block(1)
        self.depth -= 1

    def break_(self) -> None:
        self.emit(self.r.choice([
            f"act({self.int_()})", f"act('b', {self.int_()})", f"items.append(act({self.int_()}) + {self.int_()})",
        ]))  # fmt: skip

    def tensor_branch(self) -> None:
        self.emit(f"if {self.pick('t')}.sum() {self.r.choice('<>')} {self.r.randint(-3, 3)}:")
        self.block()
        self.emit("else:")
        self.block()

    def item(self) -> None:
        name = self.fresh("i")
        self.emit(f"{name} = int({self.pick('t')}.sum().item()) % 5")
        self.have["i"].append(name)


def build(seed: int, breaks: bool = True) -> tuple[Any, str]:
    """The function and its text."""
    text = Program(seed, breaks).text()
    scope: dict[str, Any] = {"torch": torch, "act": act, "random": random, "__name__": "program"}
    exec(compile(text, f"<program {seed}>", "exec"), scope)
    return scope["f"], text


def arguments(seed: int) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    return torch.randn(3, 4), torch.randn(3, 4), [3, 1], {"a": 2, "b": 5}, Box(), seed % 4


def outcome(fn: Any, args: tuple[Any, ...]) -> Any:
    """The result or the exception, with the state of all arguments and the log afterwards."""
    LOG.clear()
    random.seed(0)
    try:
        result: Any = ("value", fn(*args))
    except Exception as e:
        result = ("raised", type(e).__name__, str(e))
    state = [*args[:4], vars(args[4]), torch.is_grad_enabled(), random.random()]
    return result, state, list(LOG)
