"""Kinds of real objects, as capture tells them apart.

Stage: capture.  In: nothing.  Out: the types of what cannot change, of what C defines, of iterators, and whether an
object is a definition.  What is done with each kind is said elsewhere.  Read next: ``wrap``, ``sourceless``.
"""

from __future__ import annotations

import enum
import functools
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    GenericAlias,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from tinytorch.device import Device
from tinytorch.dtypes import DType

C_FUNCTIONS = (
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, GetSetDescriptorType,
    MemberDescriptorType, type(dict.__dict__["fromkeys"]), np.ufunc, type(np.concatenate),
)  # fmt: skip
#: What cannot change: objects of these very types, and of classes derived from these bases.
CONSTANT_TYPES = {
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), CodeType, range,
}  # fmt: skip
CONSTANT_BASES = (enum.Enum, DType, Device, np.dtype, GenericAlias, UnionType)
_ONE_EACH: tuple[Any, ...] = (
    iter([]), iter(()), iter(""), iter({}), iter({}.items()), iter({}.values()), iter(range(0)), reversed([]),
)  # fmt: skip
ITERATORS: tuple[type, ...] = tuple(type(x) for x in _ONE_EACH) + (enumerate, zip, map, filter, reversed, GeneratorType)


def is_definition(obj: Any) -> bool:
    """What modules define: functions, classes, modules."""
    return isinstance(obj, (FunctionType, type, ModuleType, functools.partial, *C_FUNCTIONS))
