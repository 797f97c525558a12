"""Programs into graphs: run a function on proxies that write down what is done to them.

Stage: ir.  In: a Python function of tensors, or the text of a printed graph.  Out: a ``Graph``.
Mirrors ``torch.fx.symbolic_trace``; real capture, which follows Python's own bytecode, is ``compiler.capture``.
Read next: ``interp``, ``rewrite`` (whose patterns are recorded functions).
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from compiler.ir.graph import Graph, Node
from compiler.ir.printer import INFIX, NAMESPACE, PREFIX, source
from compiler.sym.expr import Symbol
from tinytorch import dispatch
from tinytorch.ops.opdef import Op


class Proxy:
    """Stands for a value that does not exist yet; every operation on it becomes a node."""

    def __init__(self, recorder: Recorder, node: Node) -> None:
        self._recorder = recorder
        self._node = node

    def __repr__(self) -> str:
        return f"Proxy({self._node})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Attribute(self._recorder, self, name)

    def __getitem__(self, index: Any) -> Proxy:
        return self._recorder.call(operator.getitem, (self, index), {})

    def __iter__(self) -> Any:
        raise TypeError(f"cannot iterate over {self}: its length is not known while recording")

    def __bool__(self) -> bool:
        raise TypeError(f"cannot branch on {self}: its value is not known while recording")


class _Attribute(Proxy):
    """``x.name``: a method if called, else a node of its own once it is used."""

    def __init__(self, recorder: Recorder, owner: Proxy, name: str) -> None:
        self._recorder = recorder
        self._owner = owner
        self._attr = name

    def __getattr__(self, name: str) -> Any:
        if name == "_node":
            self._node = self._recorder.call(getattr, (self._owner, self._attr), {})._node
            return self._node
        return super().__getattr__(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:
        return self._recorder.method(self._attr, (self._owner, *args), kwargs)


class _Self(Proxy):
    """``self.a.b``: an attribute of the module, a ``get_attr`` node once it is used."""

    def __init__(self, recorder: Recorder, path: str) -> None:
        self._recorder = recorder
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name == "_node":
            self._node = self._recorder.graph.get_attr(self._path)
            return self._node
        if name.startswith("__"):
            raise AttributeError(name)
        return _Self(self._recorder, f"{self._path}.{name}" if self._path else name)


def _install_operators() -> None:
    def binary(fn: Callable[..., Any]) -> tuple[Any, Any]:
        return (
            lambda self, other: self._recorder.call(fn, (self, other), {}),
            lambda self, other: self._recorder.call(fn, (other, self), {}),
        )

    for fn in INFIX:
        name = fn.__name__.strip("_")
        there, back = binary(fn)
        setattr(Proxy, f"__{name}__", there)
        if name not in ("eq", "ne", "lt", "le", "gt", "ge"):
            setattr(Proxy, f"__r{name}__", back)
    for fn in PREFIX:
        setattr(Proxy, f"__{fn.__name__}__", lambda self, fn=fn: self._recorder.call(fn, (self,), {}))


_install_operators()
Proxy.__hash__ = object.__hash__  # type: ignore[method-assign]


class Recorder:
    """Makes the nodes.  As ``dispatch`` interpreter it sees the rows called on proxies."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._named: set[Node] = set()

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy:
        return Proxy(self, self.graph.call_function(target, self.unwrap(args), self.unwrap(kwargs)))

    def method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy:
        return Proxy(self, self.graph.call_method(name, self.unwrap(args), self.unwrap(kwargs)))

    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        return self.call(op, args, params)

    def write(self, dst: Any, src: Any) -> None:
        raise TypeError("recording knows no in-place writes: compile the function instead")

    def draw(self, generator: Any, numel: Any, device: Any) -> Any:
        raise TypeError("recording draws no random numbers: pass the state as an argument")

    def unwrap(self, x: Any) -> Any:
        if isinstance(x, Proxy):
            return x._node
        if type(x) in (tuple, list):
            return type(x)(self.unwrap(a) for a in x)
        if isinstance(x, dict):
            return {k: self.unwrap(v) for k, v in x.items()}
        if isinstance(x, slice):
            return slice(*map(self.unwrap, (x.start, x.stop, x.step)))
        return x

    def named(self, name: str, value: Any) -> Any:
        """``name = value`` in parsed text: the node made for it takes that name."""
        if isinstance(value, Proxy) and value._node not in self._named:
            node = value._node
            self.graph.rename(node, name)
            self._named.add(node)
        return value

    def wrap(self, x: Any) -> Any:
        """Objects that parsed text may name: calls to functions are recorded, classes and constants are themselves."""
        if isinstance(x, ModuleType):
            return _Recorded(self, x)
        if isinstance(x, Op) or isinstance(x, type) or not callable(x):
            return x
        return lambda *args, **kwargs: self.call(x, args, kwargs)


class _Recorded:
    """A module whose functions are recorded."""

    def __init__(self, recorder: Recorder, module: ModuleType) -> None:
        self._recorder = recorder
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, ModuleType) and found.__name__ == "tinytorch.ops":
            return found
        return self._recorder.wrap(found)


def record(fn: Callable[..., Any]) -> Graph:
    """Run ``fn`` on proxies, one per parameter; branching on a value is a TypeError."""
    recorder = Recorder()
    proxies = [Proxy(recorder, recorder.graph.placeholder(p)) for p in inspect.signature(fn).parameters]
    with dispatch.use(recorder):
        out = fn(*proxies)
    recorder.graph.output(recorder.unwrap(out))
    return recorder.graph


def parse(text: str, objects: dict[str, Any] | None = None) -> Graph:
    """The graph that ``printer.source`` printed; ``objects`` are those of its ``Source``.

    The text is executed, on proxies: anything Python can say is allowed, loops and helper functions included.
    ``name = ...`` gives the node its name; ``s0 = x.shape[0]``, ``s0 = int(n)`` and a parameter ``s0: int`` declare
    size symbols.
    """
    recorder = Recorder()
    tree = _Assignments().visit(ast.parse(text))
    names = {k: recorder.wrap(v) for k, v in {**NAMESPACE, **(objects or {})}.items()}
    names.update(ops=NAMESPACE["ops"], __named=recorder.named, __size=Symbol)
    exec(compile(ast.fix_missing_locations(tree), "<graph>", "exec"), names)
    fn = names[next(s.name for s in tree.body if isinstance(s, ast.FunctionDef))]
    params = list(inspect.signature(fn).parameters.values())
    args: list[Any] = [_Self(recorder, "")] if params and params[0].name == "self" else []
    for p in params[len(args) :]:
        default = ... if p.default is p.empty else p.default
        node = recorder.graph.placeholder(p.name, default)
        recorder._named.add(node)
        if p.annotation is int:
            node.meta["val"] = Symbol(p.name)
        args.append(Symbol(p.name) if p.annotation is int else Proxy(recorder, node))
    with dispatch.use(recorder):
        out = fn(*args)
    recorder.graph.output(recorder.unwrap(out))
    return recorder.graph


class _Assignments(ast.NodeTransformer):
    """``name = value`` to ``name = __named("name", value)``; ``s0 = x.shape[0]`` to ``s0 = __size("s0")``."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            name = ast.Constant(target.id)
            size = _is_size(node.value)
            args: list[ast.expr] = [name] if size else [name, node.value]
            node.value = ast.Call(ast.Name("__size" if size else "__named", ast.Load()), args, [])
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.Pass:
        return ast.Pass()


def _is_size(e: ast.expr) -> bool:
    text = ast.unparse(e)
    return re.fullmatch(r"\w+\.shape\[\d+\]|int\(\w+\)", text) is not None


def same(a: Graph, b: Graph) -> str | None:
    """None if the graphs are equal up to metadata, else the first difference as text."""
    left, right = (source(g, comments=False, sizes=False) for g in (a, b))
    if left.text == right.text and all(left.objects[k] is right.objects.get(k) for k in left.objects):
        return None
    for x, y in zip(left.text.splitlines(), right.text.splitlines(), strict=False):
        if x != y:
            return f"{x.strip()!r} is not {y.strip()!r}"
    return f"objects differ: {left.objects} and {right.objects}" if left.text == right.text else "one graph is longer"
