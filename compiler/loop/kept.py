"""Plans that were made before: in this process as objects, on disk as the bytecode of the text they print as.

Stage: loop.  In: a functional graph, the config.  Out: the ``Plan`` that ``compile_graph`` gives, or gave.  Two graphs are
equal if their nodes, types, layouts and source lines are; the key also holds the settings and the sources of all that
lowering reads.  Functions traced anew often give an old graph (a step that adds to gradients or makes them), and a second
process begins where the first one left off.  Mirrors Inductor's ``FxGraphCache``.  Read next: ``host``, ``printer``.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from compiler import cache, logs
from compiler.ir.graph import Node
from compiler.loop.host import compile_graph
from compiler.loop.ir import Plan
from compiler.loop.printer import code_of, format_plan, run_code
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

#: What lowering reads: a change of any of it makes new keys.
SOURCES = ("compiler.loop", "compiler.passes", "compiler.sym", "tinytorch.ops")
_plans: WeakValueDictionary[str, Plan] = WeakValueDictionary()


def plan_of(gm: Any, config: Any) -> tuple[str, Plan]:
    """The plan of a graph, and the name under which it is kept ("": it is not)."""
    if not config.cache:
        return "", compile_graph(gm, config)
    key = cache.key_of("plan", [*map(cache.package_hash, SOURCES)], config.key(), [*described(gm)])
    found = plan_named(key)
    if found is None:
        found = _plans[key] = _made(gm, config, key)
    return key, found


def plan_named(key: str) -> Plan | None:
    """The plan kept under a name that ``plan_of`` gave, in this process or an earlier one."""
    found = _plans.get(key) or _from_disk(key)
    if found is not None:
        _plans[key] = found
    return found


def _from_disk(key: str) -> Plan | None:
    kept = cache.get("plan", key)
    if kept is None:
        return None
    logs.log("cache", f"the plan {key[:12]} was kept")
    return run_code(marshal.loads(kept))


def _made(gm: Any, config: Any, key: str) -> Plan:
    plan = compile_graph(gm, config)
    if cache.folder() is not None:
        cache.put("plan", key, marshal.dumps(code_of(format_plan(plan))))
    return plan


def described(gm: Any) -> Iterator[str]:
    """The graph as text: everything that a plan may depend on."""
    yield repr([sorted(gm.meta.get("donated", ())), sorted(gm.meta.get("inplace", {}).items())])
    for node in gm.graph.nodes:
        target = node.target.name if isinstance(node.target, Op) else getattr(node.target, "__name__", node.target)
        line = tuple(node.meta.get("stack") or ())[-1:]
        yield f"{node.name} {node.op} {target} {_text(node.args)} {_text(node.kwargs)} {_text(node.meta.get('val'))} {line}"


def _text(x: Any) -> str:
    if isinstance(x, Node):
        return x.name
    if isinstance(x, Tensor):
        data = x._data
        return f"{x.dtype} {x.device} {tuple(map(str, data.shape))} {tuple(map(str, x.stride()))}"
    if isinstance(x, tuple | list):
        return f"[{', '.join(map(_text, x))}]"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{k}: {_text(v)}' for k, v in x.items())}}}"
    if isinstance(x, str | float | int | bool | DType | None):
        return repr(x)
    return f"{type(x).__name__} {x}"
