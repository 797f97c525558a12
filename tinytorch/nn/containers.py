"""Modules that hold modules or parameters: by order, by name, or one after another.

Stage: eager.  In: modules or parameters.  Out: a list, dict or pipeline whose members are registered.
Mirrors ``torch.nn.Sequential``, ``ModuleList``, ``ModuleDict``, ``ParameterList``, ``ParameterDict``.
Read next: ``linear``.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tinytorch.nn.module import Module
from tinytorch.nn.parameter import Parameter
from tinytorch.tensor import Tensor


def _position(index: Any, size: int) -> int:
    """``index`` counted from the front; IndexError out of range."""
    i = operator.index(index)
    if not -size <= i < size:
        raise IndexError(f"index {i} is out of range")
    return i % size


class _Numbered(Module):
    """Children named 0, 1, 2, ...; what Sequential and ModuleList share."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def _fresh(self, modules: Iterable[Module]) -> _Numbered:
        raise NotImplementedError

    def _renumber(self, modules: Iterable[Module]) -> None:
        members = list(modules)
        self._modules.clear()
        self._modules.update((str(i), m) for i, m in enumerate(members))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        members = list(self._modules.values())
        if isinstance(index, slice):
            return self._fresh(members[index])
        return members[_position(index, len(members))]

    def __setitem__(self, index: Any, module: Module) -> None:
        setattr(self, list(self._modules)[_position(index, len(self))], module)

    def __delitem__(self, index: Any) -> None:
        members = list(self._modules.values())
        del members[index if isinstance(index, slice) else _position(index, len(members))]
        self._renumber(members)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    def append(self, module: Module) -> Any:
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        if not isinstance(module, Module):
            raise TypeError(f"module should be of type: {Module}")
        members = list(self._modules.values())
        if not -len(members) <= index <= len(members):
            raise IndexError(f"Index out of range: {index}")
        members.insert(index, module)
        self._renumber(members)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}")
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key: int) -> Module:
        module: Module = self[key]
        del self[key]
        return module

    def __iadd__(self, modules: Iterable[Module]) -> Any:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> Any:
        return self._fresh([*self, *other])


class Sequential(_Numbered):
    """Calls its modules one after another.  Takes modules, or one OrderedDict of names to modules."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else None
        for name, module in named or ((str(i), m) for i, m in enumerate(args)):
            self.add_module(name, module)

    def _fresh(self, modules: Iterable[Module]) -> Sequential:
        return type(self)(*modules)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules.  It has no forward: index or iterate it."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _fresh(self, modules: Iterable[Module]) -> ModuleList:
        return type(self)(modules)

    def __repr__(self) -> str:
        """Runs of equal modules print once, with their count."""
        texts = [repr(m) for m in self]
        if not texts:
            return self._get_name() + "()"
        lines: list[str] = []
        start = 0
        for i, text in enumerate(texts):
            if i + 1 == len(texts) or texts[i + 1] != text:
                many = i > start
                head = f"({start}-{i}): {i - start + 1} x " if many else f"({i}): "
                lines.append((head + text).replace("\n", "\n  "))
                start = i + 1
        return self._get_name() + "(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """A dict of modules, in order of insertion."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        self._modules.clear()

    def pop(self, key: str) -> Module:
        return self._modules.pop(key)

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def items(self) -> Iterable[tuple[str, Module]]:
        return self._modules.items()

    def values(self) -> Iterable[Module]:
        return self._modules.values()

    def update(self, modules: Any) -> None:
        if not isinstance(modules, Iterable):
            raise TypeError(
                "ModuleDict.update should be called with an iterable of key/value pairs, but got "
                + type(modules).__name__
            )
        pairs = modules.items() if isinstance(modules, Mapping | ModuleDict) else modules
        for key, module in pairs:
            self[key] = module


def _as_parameter(value: Any) -> Any:
    """Plain tensors become Parameters, as PyTorch does it."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    where = "" if value.device.type == "cpu" else f" ({value.device})"
    return f"{kind} containing: [{value.dtype} of size {'x'.join(map(str, value.shape))}{where}]"


class ParameterList(Module):
    """A list of parameters; tensors put into it become Parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(getattr(self, str(i)) for i in range(self._size)[index])
        return getattr(self, str(_position(index, self._size)))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_position(index, self._size)), _as_parameter(value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self[i] for i in range(self._size))

    def append(self, value: Any) -> ParameterList:
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def __repr__(self) -> str:
        lines = "".join(f"\n  ({i}): {_describe(v)}" for i, v in enumerate(self))
        return f"{self._get_name()}({lines}\n)" if lines else self._get_name() + "()"


class ParameterDict(Module):
    """A dict of parameters; tensors put into it become Parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, "at_" + key if key in _TAKEN else key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, "at_" + key if key in _TAKEN else key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, "at_" + key if key in _TAKEN else key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Iterable[str]:
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        return [self[k] for k in self._keys]

    def items(self) -> Iterable[tuple[str, Any]]:
        return [(k, self[k]) for k in self._keys]

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._keys else default

    def pop(self, key: str) -> Any:
        value = self[key]
        del self[key]
        return value

    def update(self, parameters: Any) -> None:
        pairs = parameters.items() if isinstance(parameters, Mapping | ParameterDict) else parameters
        for key, value in pairs:
            self[key] = value

    def __repr__(self) -> str:
        lines = "".join(f"\n  ({k}): {_describe(v)}" for k, v in self.items())
        return f"{self._get_name()}({lines}\n)" if lines else self._get_name() + "()"


#: Attribute names that a ParameterDict's own methods have taken.
_TAKEN = frozenset(dir(ParameterDict)) | {"training", "_keys"}
