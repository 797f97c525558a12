"""``GraphModule``: a graph that can be called, with the tensors it refers to.

Stage: ir.  In: a ``Graph`` and ``{dotted name: value}``.  Out: a callable; its ``code`` is what runs.
Mirrors ``torch.fx.GraphModule``.  Read next: ``interp`` (what calling it means), ``show``.
"""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable, Mapping
from typing import Any

from compiler.ir import meta, printer, show
from compiler.ir.graph import Graph

_serial = itertools.count()


class GraphModule:
    """``gm(*args)`` runs ``gm.code``, generated from ``gm.graph`` and generated anew after ``recompile()``.

    ``root`` gives the attributes that ``get_attr`` nodes name: a mapping, or any object with such attributes.
    """

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        self.class_name = class_name
        self.graph = graph
        self.meta: dict[str, Any] = {}
        self.attributes: dict[str, Any] = dict(root) if isinstance(root, Mapping) else {}
        if not isinstance(root, Mapping) and root is not None:
            names = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
            self.attributes = {name: _lookup(root, name) for name in sorted(names)}
        self._forward: Callable[..., Any] | None = None

    # --- running ---
    def __call__(self, *args: Any) -> Any:
        if self._forward is None:
            self._forward = self._build()
        return self._forward(_Attributes(self.attributes), *args)

    forward = __call__

    def recompile(self) -> printer.Source:
        """Forget the generated code after a change of the graph; returns the new source."""
        self.changed()
        return printer.source(self.graph)

    def changed(self) -> None:
        """Forget the generated code; the next call makes it anew."""
        self._forward = None

    def _build(self) -> Callable[..., Any]:
        # The text that runs is in linecache, so tracebacks and debuggers show it.
        src = printer.source(self.graph, free=True)
        filename = f"<{self.class_name}_{next(_serial)}>"
        linecache.cache[filename] = (len(src.text), None, src.text.splitlines(True), filename)
        namespace = src.namespace()
        exec(compile(src.text, filename, "exec"), namespace)
        fn: Callable[..., Any] = namespace["forward"]
        return fn

    # --- reading ---
    @property
    def code(self) -> str:
        return printer.source(self.graph).text

    def print_readable(self, print_output: bool = True) -> str:
        """The graph as a class with a ``forward``.  Mirrors ``torch.fx.GraphModule.print_readable``."""
        body = "".join(f"    {line}\n" if line else "\n" for line in self.code.splitlines())
        held = "".join(f"    # self.{k}: {meta.describe(v)}\n" for k, v in self.attributes.items())
        text = f"class {self.class_name}:\n{held}{body}"
        if print_output:
            sys.stdout.write(text)
        return text

    def show(self, **options: Any) -> show.Picture:
        """The graph as a picture (``ir.show``)."""
        return show.show(self.graph, **options)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return show.show(self.graph)._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        return f"{self.class_name}()\n\n{self.code}"

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__.get("attributes", {})
        if name in attributes:
            return attributes[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # --- copying ---
    def copy(self) -> GraphModule:
        """A module with its own graph and the same attributes."""
        new = GraphModule(self.attributes, self.graph.copy()[0], self.class_name)
        new.meta = dict(self.meta)
        return new

    def __deepcopy__(self, memo: Any) -> GraphModule:
        return self.copy()

    def add_attribute(self, stem: str, value: Any) -> str:
        """Hold ``value`` under a free name after ``stem``; the name is what ``graph.get_attr`` takes."""
        for name, have in self.attributes.items():
            if have is value:
                return name
        name, n = stem, 0
        while name in self.attributes:
            n += 1
            name = f"{stem}_{n}"
        self.attributes[name] = value
        return name


class _Attributes:
    """``self`` of the generated code: dotted names step by step."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self.__dict__.update(_values=values, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in self._values:
            return self._values[path]
        if any(k.startswith(path + ".") for k in self._values):
            return _Attributes(self._values, path + ".")
        raise AttributeError(f"the graph module holds no attribute {path!r}")


def _lookup(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = root[int(part)] if part.isdigit() and not hasattr(root, part) else getattr(root, part)
    return root
