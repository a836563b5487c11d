"""Generation of compiled loops from formulas of the op table.

A formula is a plain Python function of scalars, such as the partial ``def _(x): return cos(x)``.
Its dependencies are found from its bytecode: an op stands for its own scalar formula, functions of
the vector-math modules and numeric constants for themselves. All of them are copied as source text
into one module per kernel. The kernel's machine code on disk is named by a hash of everything it
depends on, so any edit to a dependency changes the hash.

Float literals become constants of the kernel's type, so that a float32 kernel computes in float32.
Vector math computes in float64, and its result is rounded once.
"""

from __future__ import annotations

import ast
import copy
import dis
import functools
import hashlib
import inspect
import marshal
import math
import textwrap
import types
from collections.abc import Callable
from typing import Any, ClassVar

from tapegrad.kernels import native
from tapegrad.kernels.functions import vmath
from tapegrad.kernels.sources import sources
from tapegrad.kernels.structs import ARRAY_DATA

_OPTIONS = 'error_model="numpy", fastmath={"contract"}, pipeline_class=Pipeline'
_HELPER = f"@numba.njit(forceinline=True, **{native.NO_WRAPPERS}, {_OPTIONS})"
TYPES = ("float32", "float64")


def _libm_sin(x: float) -> float:
    return math.sin(x)


def _libm_cos(x: float) -> float:
    return math.cos(x)


def _libm_tan(x: float) -> float:
    return math.tan(x)


# sines have two forms: without branches for blocks of small arguments, and for any argument
_SINES: dict[Any, tuple[Any, Any]] = {
    vmath.sin: (vmath.sin_reduced, _libm_sin),
    vmath.cos: (vmath.cos_reduced, _libm_cos),
    vmath.tan: (vmath.tan_reduced, _libm_tan),
}


def _scalar_function(value: Any) -> types.FunctionType | None:
    """Return the scalar formula of a global: an op's formula, or a plain function."""
    formula = getattr(value, "formula", value)
    return formula if isinstance(formula, types.FunctionType) else None


@functools.cache
def dependencies(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a formula uses, by name (dotted for attributes of modules)."""
    found: dict[str, Any] = {}
    scope = function.__globals__
    module: tuple[str, types.ModuleType] | None = None
    for instruction in dis.get_instructions(function):
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval in scope:
            value = scope[instruction.argval]
            if isinstance(value, types.ModuleType):
                module = (instruction.argval, value)
            else:
                found[instruction.argval] = value
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and module is not None:
            if module[1].__name__.startswith("tapegrad."):
                found[f"{module[0]}.{instruction.argval}"] = getattr(
                    *module[1:], instruction.argval
                )
            module = None
    return found


@functools.cache
def formula_key(function: types.FunctionType) -> bytes:
    """Hash a formula and its dependencies without reading source text."""
    digest = hashlib.sha256()
    code = function.__code__
    digest.update(marshal.dumps((code.co_code, code.co_names, code.co_varnames)))
    digest.update(repr(code.co_consts[1:] if function.__doc__ else code.co_consts).encode())
    for name, value in sorted(dependencies(function).items()):
        digest.update(name.encode())
        inner = _scalar_function(value)
        digest.update(formula_key(inner) if inner else repr(value).encode())
    return digest.digest()


class _Rewriter(ast.NodeTransformer):
    """Renames the globals of a formula, and converts its literals to the kernel's type."""

    def __init__(self, names: dict[str, str], dtype: str | None, widened: set[str]) -> None:
        self.names = names
        self.dtype = dtype
        self.widened = widened  # functions that always compute in float64

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.widened:
            node.args = [_call("float64", argument) for argument in node.args]
            return _call("float32", node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        dotted = ast.unparse(node)
        if dotted in self.names:
            return ast.Name(self.names[dotted], ast.Load())
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if self.dtype == "float32" and isinstance(node.value, float):
            return _call("float32", node)
        return node


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _is_vector_math(function: types.FunctionType | None) -> bool:
    return function is not None and function.__module__.startswith("tapegrad.kernels.")


class Module:
    """The source of a module of formulas and their dependencies.

    Parameters
    ----------
    dtype
        Type of the numbers that formulas compute with; literals become numbers of this type.
    """

    header: ClassVar[list[str]] = [
        "import math",
        "import numba",
        "import numpy as np",
        "from tapegrad.kernels.llvm.pipeline import Pipeline",
    ]
    decorator = _HELPER

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.lines = [*self.header]
        self.emitted: dict[tuple[int, int | None], str] = {}

    def scalar_function(self, value: Any) -> types.FunctionType | None:
        """Return the scalar formula of a global: an op's formula, or a plain function."""
        return _scalar_function(value)

    def is_double(self, function: types.FunctionType | None) -> bool:
        """Whether a function computes in float64, whatever the type of its arguments."""
        return _is_vector_math(function)

    def constant(self, number: str, is_double: bool) -> str:
        """Return a number that a formula has as a global name."""
        return number

    def of_modules(self, function: types.FunctionType) -> dict[str, str]:
        """Return names for attributes of modules outside of this package, as ``np.floor``."""
        return {}

    def add(self, function: types.FunctionType, form: int | None = None) -> str:
        """Emit the dependencies of a formula, then the formula; return its name in the module.

        `form` selects sines for small (0) or any (1) arguments.
        """
        if form is not None and function in _SINES:
            function = _SINES[function][form]
        key = (id(function), form)
        if key in self.emitted:
            return self.emitted[key]
        tree = copy.deepcopy(tree_of(function))  # the rewriter modifies it
        is_double = self.dtype != "float32" or self.is_double(function)
        names = self.of_modules(function)
        for used, value in dependencies(function).items():
            inner = self.scalar_function(value)
            if inner is not None:
                names[used] = self.add(inner, form)
            elif isinstance(value, (int, float)):
                number = repr(value) if math.isfinite(value) else f'float("{value}")'
                text = self.constant(number, is_double)
                names[used] = used.replace(".", "_") + ("" if text == number else "_single")
                line = f"{names[used]} = {text}"
                if line not in self.lines:
                    self.lines.append(line)
            else:
                raise TypeError(f"formula {function.__qualname__} uses {used}, a {type(value)}")
        unique = f"{function.__name__.strip('_') or 'partial'}_{len(self.emitted)}"
        widened = set()
        if not is_double:
            widened = {
                names[used]
                for used, value in dependencies(function).items()
                if self.is_double(self.scalar_function(value))
            }
        self.emitted[key] = unique
        arguments = arguments_of(function)
        body = tree.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        rewriter = _Rewriter(names, None if is_double else self.dtype, widened)
        text = "\n".join(ast.unparse(rewriter.visit(statement)) for statement in body)
        self.lines += ["", "", self.decorator, f"def {unique}({', '.join(arguments)}):"]
        self.lines.append(textwrap.indent(text, "    "))
        return unique

    def text(self) -> str:
        """Return the source."""
        return "\n".join(self.lines) + "\n"


class _Loops(Module):
    """The source of a kernel's module: formulas, and loops over arrays."""

    header: ClassVar[list[str]] = [
        *Module.header,
        "from numba import float32, float64",
        "from tapegrad.kernels.intrinsics import (",
        "    f4_pointer, f8_pointer, i8_pointer, load, store",
        ")",
    ]

    def add_formula(self, function: types.FunctionType) -> None:
        """Emit a formula in the forms that its loop needs."""
        for form in (0, 1) if _takes_sines(function) else (None,):
            self.add(function, form)

    def add_loop(self, function: types.FunctionType, read: dict[str, str], result: str) -> None:
        """Emit the loop over `i` that stores `result`, where ``{}`` stands for the formula's value.

        `read` maps the formula's arguments to pointers. A formula that takes sines of its arguments
        gets a second, vectorised loop for blocks in which all arguments are small.
        """
        loads = ", ".join(f"load({pointer}, i)" for pointer in read.values())
        reads_trig = bool(read) and _takes_sines(function)
        indent = "    "
        if reads_trig:
            limit = f"{self.dtype}({vmath.REDUCED_LIMIT})"
            self.lines.append("    small = True")
            self.lines.append("    for i in range(count):")
            for pointer in read.values():
                self.lines.append(f"        small = small & (abs(load({pointer}, i)) <= {limit})")
            self.lines.append("    if small:")
            self._loop("        ", result.format(f"{self.add(function, 0)}({loads})"))
            self.lines.append("    else:")
            indent = "        "
        form = 1 if reads_trig else None
        self._loop(indent, result.format(f"{self.add(function, form)}({loads})"))

    def _loop(self, indent: str, value: str) -> None:
        self.lines.append(f"{indent}for i in range(count):")
        self.lines.append(f"{indent}    store(out_, i, {self.dtype}({value}))")


@functools.cache
def tree_of(function: types.FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a formula, which is not to be modified."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def arguments_of(function: types.FunctionType) -> tuple[str, ...]:
    """Return the names of the arguments of a formula."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _takes_sines(function: types.FunctionType) -> bool:
    """Whether a formula applies sin, cos or tan, and only to its own arguments."""
    if function in _SINES:
        return True
    if _is_vector_math(function):
        return False
    found = False
    used = dependencies(function)
    arguments = arguments_of(function)
    for node in ast.walk(tree_of(function)):
        if isinstance(node, ast.Call):
            inner = _scalar_function(used.get(ast.unparse(node.func)))
            if inner is not None and _takes_sines(inner):
                if not all(isinstance(a, ast.Name) and a.id in arguments for a in node.args):
                    return False
                found = True
    return found


# a partial of 0 means that the value was not chosen: its cotangent is 0 even where g is nan
_CHOSEN = ["", "", _HELPER, "def chosen(g, partial):", "    return g * partial if partial else 0.0"]


def _pointer(dtype: str) -> str:
    return "f8_pointer" if dtype == "float64" else "f4_pointer"


def partial_source(
    rule: types.FunctionType, values: tuple[str, ...], dtype: str, chooses: bool
) -> str:
    """Return the source of a reverse kernel: ``out[i] = g[i] * partial(values[i]...)``."""
    module = _Loops(dtype)
    if chooses:
        module.lines += _CHOSEN
    module.add_formula(rule)
    place = dict(zip(values, ("z", "a0", "a1", "a2"), strict=False))
    read = {name: f"{place[name]}_" for name in arguments_of(rule)}
    module.lines += ["", "", f"@numba.cfunc(numba.void(*[numba.int64] * 7), {_OPTIONS})"]
    module.lines.append("def kernel(count, g, z, a0, a1, a2, out):")
    for name in ("g", "out", *(place[name] for name in read)):
        module.lines.append(f"    {name}_ = {_pointer(dtype)}({name})")
    module.add_loop(rule, read, "chosen(load(g_, i), {})" if chooses else "load(g_, i) * {}")
    return module.text()


def scalar_source(formula: types.FunctionType, of_floats: bool = False) -> tuple[str, str]:
    """Return a formula's name in a module, where it is a function of numba's, and its source.

    Parameters
    ----------
    formula
        Plain function of scalars.
    of_floats
        Whether integers are converted, as the compiled loop does.
    """
    module = _Loops("float64")
    name = module.add(formula)
    if of_floats:
        names = arguments_of(formula)
        module.lines += ["from tapegrad.kernels.intrinsics import as_float", "", "", _HELPER]
        module.lines.append(f"def of_floats({', '.join(names)}):")
        module.lines.append(f"    return {name}({', '.join(f'as_float({n})' for n in names)})")
        name = "of_floats"
    return name, module.text()


def map_source(formula: types.FunctionType, dtype: str) -> str:
    """Return the source of a forward loop: ``out[i] = formula(inputs[i]...)``.

    Its arguments are the number of elements and the addresses of the array headers.
    """
    module = _Loops(dtype)
    module.add_formula(formula)
    arguments = arguments_of(formula)
    words = len(arguments) + 2
    module.lines += ["", "", f"@numba.cfunc(numba.void(*[numba.int64] * {words}), {_OPTIONS})"]
    module.lines.append(f"def kernel(count, {', '.join(arguments)}, out):")
    for name in (*arguments, "out"):
        data = f"load(i8_pointer({name}), {ARRAY_DATA >> 3})"
        module.lines.append(f"    {name}_ = {_pointer(dtype)}({data})")
    module.add_loop(formula, {name: f"{name}_" for name in arguments}, "{}")
    return module.text()


def _build(key: str, source: Callable[[], str]) -> int:
    return native.load(key, lambda: native.compile_source(key, source(), "kernel"))


def partial_kernel(
    rule: types.FunctionType, values: tuple[str, ...], dtype: int, chooses: bool
) -> int:
    """Return the address of the compiled loop over a partial derivative.

    Parameters
    ----------
    rule
        The partial, a function of some of `values`.
    values
        Names of the values in the kernel's operands z, a0, a1, a2.
    dtype
        Code of the float type (`tapegrad.tape.layout`).
    chooses
        Whether the product is 0 where the partial is 0, whatever the cotangent is.
    """
    read = arguments_of(rule)
    places = repr([values.index(name) for name in read])
    identity = (formula_key(rule), places.encode(), bytes([dtype, chooses]))
    key = native.fingerprint(_generator(), b"partial", *identity)
    return _build(key, lambda: partial_source(rule, values, TYPES[dtype], chooses))


def map_kernel(formula: types.FunctionType, dtype: int) -> int:
    """Return the address of the compiled loop over a formula."""
    key = native.fingerprint(_generator(), b"map", formula_key(formula), bytes([dtype]))
    return _build(key, lambda: map_source(formula, TYPES[dtype]))


@functools.cache
def _generator() -> bytes:
    """Return the source of the generator, since an edit to it invalidates its output."""
    return b"".join(sources("kernels/codegen.py", "kernels/intrinsics.py"))
