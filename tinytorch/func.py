"""``tinytorch.func``: modules and gradients as functions.

Stage: eager.  In: a module and other tensors for its parameters; a function.  Out: the result with these; the function's
gradient.  Mirrors a part of ``torch.func``.  Read next: ``autograd.functional``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tinytorch import engine, tape
from tinytorch.nn.module import Module
from tinytorch.tensor import Tensor
from tinytorch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Tensors = Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]


# --- modules ----------------------------------------------------------------------------------------------------------
def functional_call(
    module: Module, parameter_and_buffer_dicts: Tensors, args: Any = None, kwargs: Any = None, *,
    tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """``module(*args, **kwargs)`` with these tensors in the places of its parameters and buffers.

    What is not named stays.  Tied tensors are replaced together; ``strict`` wants every name, and no other.
    """
    dicts = parameter_and_buffer_dicts
    given: dict[str, Tensor] = {}
    for part in (dicts,) if isinstance(dicts, Mapping) else dicts:
        doubled = given.keys() & part.keys()
        if doubled:
            raise ValueError(f"{sorted(doubled)} appeared in multiple dictionaries; behavior of functional call is ambiguous")
        given.update(part)
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    with _swapped(module, given, tie_weights, strict):
        return module(*positional, **(kwargs or {}))


@contextmanager
def _swapped(module: Module, given: Mapping[str, Tensor], tied: bool, strict: bool) -> Iterator[None]:
    """Inside the block the tensors named in ``given`` are the module's."""
    here = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}
    unknown, missing = given.keys() - here.keys(), here.keys() - given.keys()
    if unknown and (strict or not tied):
        raise RuntimeError(f"Unexpected key(s): {', '.join(sorted(unknown))}.")
    if strict and missing:
        raise RuntimeError(f"Missing key(s): {', '.join(sorted(missing))}.")
    new = {id(here[name]): t for name, t in given.items() if name in here} if tied else {}
    before = []
    for name, old in here.items():
        t = given.get(name, new.get(id(old)))
        if t is None:
            continue
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        place: Any = owner._parameters if last in owner._parameters else owner._buffers
        before.append((place, last, old))
        place[last] = t
    try:
        yield
    finally:
        for place, last, old in before:
            place[last] = old


# --- gradients --------------------------------------------------------------------------------------------------------
def grad(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of ``func``, which gives one number (and, with ``has_aux``, something more).

    Arguments may be trees of tensors; the gradient of a dict is a dict.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As ``grad``, with the value behind it.  Gradients of gradients work."""
    places = (argnums,) if isinstance(argnums, int) else argnums

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        trees = [tree_flatten(args[i]) for i in places]
        old = [t for leaves, _ in trees for t in leaves]
        for t in old:
            if not isinstance(t, Tensor):
                raise ValueError(f"Expected inputs to be Tensors, or trees of them, got unsupported type {type(t).__name__}")
        nested = tape.mode.grad and any(isinstance(a, Tensor) and a.requires_grad for a in tree_leaves((args, kwargs)))
        with tape.grad_mode(True):
            new = [t * 1 if t.requires_grad else t.detach().requires_grad_() for t in old]
            given, rest = list(args), iter(new)
            for i, (_, spec) in zip(places, trees, strict=True):
                given[i] = tree_unflatten([next(rest) for _ in range(spec.num_leaves)], spec)
            result = func(*given, **kwargs)
            value = result[0] if has_aux else result
            if value.dim():
                raise RuntimeError(f"Expected the function given to grad to return a scalar tensor, got tensor with {value.dim()} dims.")
            grads: Sequence[Any] = [None] * len(new)
            if value.requires_grad:
                grads = engine.backward(
                    [value], [None], inputs=new, accumulate=False, retain_graph=nested, create_graph=nested
                )
        found = iter([g if g is not None else t * 0 for g, t in zip(grads, old, strict=True)])
        if not nested:
            value = value.detach()
            result = (value, *result[1:]) if has_aux else value
        made = [tree_unflatten([next(found) for _ in range(spec.num_leaves)], spec) for _, spec in trees]
        return (made[0] if isinstance(argnums, int) else tuple(made)), result

    return both
