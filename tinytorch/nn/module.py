"""``Module``: a tree of parameters, buffers and modules that can be called.

Stage: eager.  In: assignments in ``__init__`` and a ``forward``.  Out: registries by name, hooks around the call,
walks over the tree.  Capture follows a call through ``__call__`` into ``forward`` like any Python code, so what happens
here is plain and short.  Mirrors ``torch.nn.Module``.  Read next: ``state``, ``moves``, ``linear``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tinytorch.hooks import RemovableHandle
from tinytorch.nn.backward_hooks import BackwardHooks
from tinytorch.nn.moves import Moves
from tinytorch.nn.parameter import Buffer, Parameter
from tinytorch.nn.state import StateDict, add_hook
from tinytorch.tensor import Tensor

M = TypeVar("M", bound="Module")


class Module(StateDict, Moves):
    """The base of all layers and models.  Assigning a Parameter, Buffer or Module to an attribute registers it."""

    training: bool
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        mine = self.__dict__  # past __setattr__, which needs these to exist
        mine["training"] = True
        for registry in _REGISTRIES:
            mine[registry] = {}
        mine["_non_persistent_buffers_set"] = set()

    # --- attributes ----------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(registry)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        registry = _registry_for(value)
        if registry is not None:
            if registry not in self.__dict__:
                what = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "module"}[registry]
                raise AttributeError(f"cannot assign {what} before Module.__init__() call")
            self._forget(name, keep=registry)
            if registry == "_parameters":
                self.register_parameter(name, value)
            elif registry == "_buffers":
                self.register_buffer(name, value, value.persistent)
            else:
                self._modules[name] = value
            return
        for kind, wanted in (("_parameters", "parameter"), ("_modules", "child module"), ("_buffers", "buffer")):
            held = self.__dict__.get(kind)
            if held is not None and name in held:
                if value is not None and not (kind == "_buffers" and isinstance(value, Tensor)):
                    raise TypeError(f"cannot assign '{type(value).__name__}' as {wanted} '{name}'")
                held[name] = value
                return
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name: str, keep: str) -> None:
        """Whatever stood under ``name``, but for its place in the registry ``keep``."""
        self.__dict__.pop(name, None)
        for registry in ("_parameters", "_buffers", "_modules"):
            if registry != keep:
                self.__dict__.get(registry, {}).pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    # --- registration --------------------------------------------------------------------------------------------
    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Give a parameter (or None, to reserve the name) an attribute name."""
        self._check_name(name, self._parameters, "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"cannot assign '{type(param).__name__}' object to parameter '{name}' (nn.Parameter or None required)")
        if param is not None and not param.is_leaf:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly. To "
                f"express '{name}' as a function of another Tensor, compute the value in the forward() method."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Give a tensor that is state but not trained an attribute name; not saved unless ``persistent``."""
        self._check_name(name, self._buffers, "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or None required)")
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Give a child module an attribute name."""
        self._check_name(name, self._modules, "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, registry: dict[str, Any], what: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name or not name:
            raise KeyError(f'{what} name can\'t contain "." and can\'t be empty string "", got: {name!r}')
        if hasattr(self, name) and name not in registry:
            raise KeyError(f"attribute '{name}' already exists")

    # --- the call ------------------------------------------------------------------------------------------------
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What a call computes; every subclass writes its own."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            return compiled(*args, **kwargs)
        return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks):
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any], forward: Any = None) -> Any:
        """Pre-hooks, forward (or what stands in for it), hooks; backward hooks see what goes in and out."""
        for pre, with_kwargs in list(self._forward_pre_hooks.values()):
            changed = pre(self, args, kwargs) if with_kwargs else pre(self, args)
            if changed is not None and with_kwargs:
                args, kwargs = changed
            elif changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        backward = None
        if self._backward_hooks or self._backward_pre_hooks:
            backward = BackwardHooks(self, list(self._backward_hooks.values()), list(self._backward_pre_hooks.values()))
            args = backward.watch_inputs(args)
        try:
            out = (forward or self.forward)(*args, **kwargs)
        except Exception:
            self._always_hooks(args, kwargs)
            raise
        for hook, with_kwargs, _ in list(self._forward_hooks.values()):
            changed = hook(self, args, kwargs, out) if with_kwargs else hook(self, args, out)
            out = out if changed is None else changed
        return out if backward is None else backward.watch_outputs(out)

    def _always_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After ``forward`` raised: the hooks registered with ``always_call``, their own errors dropped."""
        for hook, with_kwargs, always in list(self._forward_hooks.values()):
            if always:
                try:
                    _ = hook(self, args, kwargs, None) if with_kwargs else hook(self, args, None)
                except Exception:
                    pass

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile this module's call in place: ``tinytorch.compile`` with the same arguments."""
        import tinytorch

        self.__dict__["_compiled_call_impl"] = tinytorch.compile(self._call_impl, *args, **kwargs)

    # --- hooks ---------------------------------------------------------------------------------------------------
    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """``hook(module, args)`` before forward; what it returns replaces the arguments."""
        return add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)  # type: ignore[arg-type]

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """``hook(module, args, output)`` after forward; what it returns replaces the output."""
        return add_hook(self._forward_hooks, (hook, with_kwargs, always_call), prepend)  # type: ignore[arg-type]

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """``hook(module, grad_output)`` before the module's gradients are computed; it may return new ones."""
        return add_hook(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known."""
        return add_hook(self._backward_hooks, hook, prepend)

    register_backward_hook = register_full_backward_hook

    # --- walks ---------------------------------------------------------------------------------------------------
    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, parents first, each once."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(seen, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        for _, module in self.named_children():
            yield module

    def _named_members(self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        walk = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for start, module in walk:
            for name, t in getattr(module, registry).items():
                if t is not None and id(t) not in seen:
                    if remove_duplicate:
                        seen.add(id(t))
                    yield (f"{start}.{name}" if start else name), t

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def get_submodule(self, target: str) -> Module:
        """The module at the dotted path ``target``; AttributeError names the part that is missing."""
        found: Any = self
        for part in target.split(".") if target else ():
            if part not in getattr(found, "_modules", {}):
                raise AttributeError(f"{type(found).__name__} has no attribute `{part}`")
            found = found._modules[part]
        return found  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: Module) -> None:
        """Put ``module`` at the dotted path ``target``."""
        parent, _, name = target.rpartition(".")
        if not name:
            raise ValueError("Cannot set the submodule without a target name!")
        setattr(self.get_submodule(parent), name, module)

    def get_parameter(self, target: str) -> Parameter:
        return self._get_member(target, "_parameters", "parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        return self._get_member(target, "_buffers", "buffer")  # type: ignore[no-any-return]

    def _get_member(self, target: str, registry: str, what: str) -> Any:
        parent, _, name = target.rpartition(".")
        module = self.get_submodule(parent)
        if name not in getattr(module, registry):
            raise AttributeError(f"{type(module).__name__} has no {what} `{name}`")
        return getattr(module, registry)[name]

    # --- whole-tree changes --------------------------------------------------------------------------------------
    def apply(self: M, fn: Callable[[Module], None]) -> M:
        """``fn(module)`` for every module of the tree, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self: M, mode: bool = True) -> M:
        """Training behaviour on (dropout drops, batch norm learns statistics) or off, in the whole tree."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: M) -> M:
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters():
            if set_to_none:
                p.grad = None  # as ``Optimizer.zero_grad``
            elif p.grad is not None:
                p.grad = p.grad.detach().zero_()

    # --- print ---------------------------------------------------------------------------------------------------
    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What stands between the parentheses of ``repr``; layers give their sizes."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        children = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        if not children and len(extra) <= 1:
            return f"{self._get_name()}({''.join(extra)})"
        lines = "".join(f"\n  {line}" for line in extra + children)
        return f"{self._get_name()}({lines}\n)"


#: The dicts every module has from the start.
_REGISTRIES = (
    "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
    "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)  # fmt: skip


def _registry_for(value: Any) -> str | None:
    """Which registry an assigned value belongs to, if any."""
    if isinstance(value, Parameter):
        return "_parameters"
    if isinstance(value, Module):
        return "_modules"
    return "_buffers" if isinstance(value, Buffer) else None


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")
