"""How values of Python's own types are hashed: as bytes, or as their parts."""

from __future__ import annotations

import functools
import re
import struct
import types
from collections.abc import Callable, Iterable
from typing import Any

# Types that are hashed as bytes.
LEAVES: dict[type, Callable[[Any], bytes]] = {
    **dict.fromkeys((types.NoneType, types.EllipsisType, types.NotImplementedType), lambda _: b""),
    bool: lambda x: b"%d" % x,
    int: lambda x: hex(x).encode(),
    float: lambda x: struct.pack(">d", x),
    complex: lambda x: struct.pack(">dd", x.real, x.imag),
    str: lambda x: x.encode("utf-8", "surrogatepass"),
    bytes: lambda x: x,
}

# Types that are hashed as their parts.
PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: lambda x: x,
    list: lambda x: x,
    slice: lambda x: (x.start, x.stop, x.step),
    range: lambda x: (x.start, x.stop, x.step),
    re.Pattern: lambda x: (x.pattern, x.flags),
    property: lambda x: (x.fget, x.fset, x.fdel),
    staticmethod: lambda x: (x.__func__,),
    classmethod: lambda x: (x.__func__,),
    functools.cached_property: lambda x: (x.func,),
    functools.partialmethod: lambda x: (x.func, x.args, x.keywords),
    functools.partial: lambda x: (x.func, x.args, x.keywords, vars(x)),
    type(functools.cache(len)): lambda x: (vars(x),),
    types.MethodType: lambda x: (x.__func__, x.__self__),
    types.MethodDescriptorType: lambda x: (x.__objclass__, x.__name__),
    types.WrapperDescriptorType: lambda x: (x.__objclass__, x.__name__),
    types.CodeType: lambda x: (
        x.co_code,
        x.co_exceptiontable,
        x.co_flags,
        x.co_argcount,
        x.co_posonlyargcount,
        x.co_kwonlyargcount,
        x.co_consts,
        x.co_names,
        x.co_varnames,
        x.co_freevars,
        x.co_cellvars,
    ),
}
