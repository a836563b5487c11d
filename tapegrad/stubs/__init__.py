"""Types of the functions and methods that are derived from the op table.

They exist at run time only, so what type checkers are to know of them is written to files beside
this one, by ``python -m tapegrad.stubs``. A test finds what is not up to date.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from tapegrad.eager.creation import CREATION
from tapegrad.eager.numeric import NAMESPACES, PUBLIC
from tapegrad.eager.tensor import Tensor
from tapegrad.methods import BINARY, PASSIVE_BINARY, REFLECTED_PASSIVE, UNARY
from tapegrad.ops.table.op import TABLE

FOLDER = Path(__file__).parent
HEADER = '''\
# Written by python -m tapegrad.stubs.
"""{title}"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tapegrad.autograd.engine.node import RemovableHandle
from tapegrad.eager.tensor import Tensor
from tapegrad.stubs.results import EighResult, EigResult, QRResult, SlogdetResult

_Array: TypeAlias = Tensor | npt.ArrayLike | Sequence[Any]
_Axis: TypeAlias = int | Sequence[int] | None
'''

# what parameters are, by their names; others are arrays if they are required
PARAMETERS = {
    "axis": "_Axis",
    "axes": "Any",
    **dict.fromkeys(("axis1", "axis2", "axisa", "axisb", "axisc", "offset", "deg"), "int"),
    **dict.fromkeys(("keepdims", "rowvar", "bias", "lower", "sparse", "increasing"), "bool"),
    **dict.fromkeys(("full_matrices", "compute_uv", "unit_diagonal", "return_sign"), "bool"),
    **dict.fromkeys(("method", "mode", "indexing", "uplo"), "str"),
    **dict.fromkeys(("shape", "new_shape", "reps"), "int | Sequence[int]"),
    **dict.fromkeys(("source", "destination", "shift"), "int | Sequence[int]"),
    **dict.fromkeys(("index", "obj", "pad_width", "indices_or_sections"), "Any"),
    **dict.fromkeys(("condlist", "choicelist", "choices", "funclist", "arrays"), "Any"),
    **dict.fromkeys(("subscripts", "c_and_lower", "operands", "value"), "Any"),
    "out": "Tensor | None",
    "where": "_Array",
    "dtype": "npt.DTypeLike",
    "func1d": "Callable[..., Any]",
}
# what is returned, where it is not one tensor
RESULTS = {
    "eig": "EigResult",
    "eigh": "EighResult",
    "qr": "QRResult",
    "slogdet": "SlogdetResult",
    **dict.fromkeys(("split", "array_split", "hsplit", "vsplit", "dsplit"), "list[Tensor]"),
    **dict.fromkeys(("unstack", "broadcast_arrays", "nonzero"), "tuple[Tensor, ...]"),
    **dict.fromkeys(("allclose", "array_equal"), "bool"),
    **dict.fromkeys(("svd", "gradient", "count_nonzero", "special.logsumexp"), "Any"),
    "meshgrid": "list[Tensor]",
    "cho_factor": "tuple[Tensor, bool]",
    "lstsq": "tuple[Tensor, Tensor, int, Tensor]",
}


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function: its own, or those of what stands behind it."""
    found = inspect.signature(function)
    if not _is_open(found):
        return found
    return inspect.signature(TABLE[name].declaration) if name in TABLE else found


def _is_open(signature: inspect.Signature) -> bool:
    return any(
        p.name == "args" and p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()
    )


def _annotation(parameter: inspect.Parameter) -> str:
    given = parameter.annotation
    if given is not parameter.empty:
        return given if isinstance(given, str) else given.__name__
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return "Any"
    required = parameter.default is parameter.empty
    return PARAMETERS.get(parameter.name, "_Array" if required else "Any")


def _parameters(parameters: Iterable[inspect.Parameter]) -> list[str]:
    parts: list[str] = []
    kinds: list[Any] = []
    for parameter in parameters:
        kind = parameter.kind
        if kind is not parameter.POSITIONAL_ONLY and kinds[-1:] == [parameter.POSITIONAL_ONLY]:
            parts.append("/")
        if kind is parameter.KEYWORD_ONLY and not {kind, parameter.VAR_POSITIONAL} & {*kinds}:
            parts.append("*")
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind.name, "")
        default = "" if parameter.default is parameter.empty else " = ..."
        parts.append(f"{star}{parameter.name}: {_annotation(parameter)}{default}")
        kinds.append(kind)
    return parts


def _definition(name: str, function: Callable[..., Any], where: str = "") -> str:
    """Return the line that declares a function."""
    signature = _signature(name, function)
    given = signature.return_annotation
    result = RESULTS.get(f"{where}.{name}") or RESULTS.get(name)
    if result is None:
        result = given if isinstance(given, str) and given not in ("Any", "Callable") else "Tensor"
    parts = _parameters(signature.parameters.values())
    return f"def {name}({', '.join(parts)}) -> {result}: ...\n"


def _module(title: str, functions: Mapping[str, Any], where: str = "") -> str:
    """Return the stub of a module of functions."""
    lines = [
        _definition(name, value, where) if inspect.isfunction(value) else f"{name}: Any\n"
        for name, value in sorted(functions.items())
    ]
    return HEADER.format(title=title) + "\n" + "".join(lines)


def _methods() -> str:
    """Return the stub of what is added to Tensor after its definition."""
    (defined,) = ast.parse(inspect.getsource(Tensor)).body
    assert isinstance(defined, ast.ClassDef)
    written = {getattr(node, "name", None) for node in defined.body}
    lines = [
        _member(name, value)
        for name, value in sorted(vars(Tensor).items())
        if name not in written | {"__hash__"} and isinstance(value, (property, FunctionType))
    ]
    body = "".join(f"    {line}\n" for line in "".join(lines).splitlines())
    title = "Operators, methods and properties of Tensor."
    return HEADER.format(title=title) + "\nclass Methods:\n" + body


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        result = PROPERTIES.get(name, "Tensor")
        lines = f"@property\ndef {name}(self) -> {result}: ...\n"
        if value.fset is not None:
            lines += f"@{name}.setter\ndef {name}(self, value: Any) -> None: ...\n"
        return lines
    signature = _signature(value.__name__, value)
    given = signature.return_annotation
    is_typed = isinstance(given, str) and given != "Any"
    if name in OPERATORS:
        ignored = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
        rest = "" if name.strip("_") in UNARY else ", other: Any"
        return f"def {name}(self{rest}) -> Tensor: ...{ignored}\n"
    _, *parameters = signature.parameters.values()
    result = RESULTS.get(name, given if is_typed else METHODS.get(name, "Tensor"))
    return f"def {name}({', '.join(['self', *_parameters(parameters)])}) -> {result}: ...\n"


OPERATORS = {f"__{sign}{name}__" for name in BINARY for sign in ("", "r", "i")}
OPERATORS |= {f"__{name}__" for name in PASSIVE_BINARY}
OPERATORS |= {f"__{sign}{name}__" for name in REFLECTED_PASSIVE for sign in "ri"}
OPERATORS |= {f"__{name}__" for name in UNARY}
METHODS = {
    "__array_function__": "Any",
    "__array_ufunc__": "Any",
    "__divmod__": "tuple[Tensor, Tensor]",
    "__rdivmod__": "tuple[Tensor, Tensor]",
    "__dlpack__": "Any",
    "__dlpack_device__": "tuple[int, int]",
    "__iter__": "Iterator[Tensor]",
    "__reduce__": "Any",
    "_is_view": "bool",
    "draw": "Any",
}
PROPERTIES = {
    "device": "str",
    "_base": "Tensor | None",
    "_version": "int",
    "grad_fn": "Any",
    "output_nr": "int",
    "retains_grad": "bool",
}


def stubs() -> dict[Path, str]:
    """Return the text of every file."""
    names = "names and meaning as in"
    return {
        FOLDER / "functions.pyi": _module(f"Functions: {names} numpy.", {**PUBLIC, **CREATION}),
        FOLDER / "linear_algebra.pyi": _module(f"{names} numpy.linalg.", NAMESPACES["linalg"]),
        FOLDER / "fourier.pyi": _module(f"{names} numpy.fft.", NAMESPACES["fft"]),
        FOLDER / "special_functions.pyi": _module(
            f"{names} scipy.special.", NAMESPACES["special"], "special"
        ),
        FOLDER / "methods.pyi": _methods(),
    }
