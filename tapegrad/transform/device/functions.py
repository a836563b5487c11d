"""Functions of numbers, written or generated for the CPU, as functions of a device.

They are plain Python. What they call becomes a function of the device too, arrays of a constant
size become local memory of the thread, the gradient of an argument that is an array is memory that
the launch provides, and the tape is a column of an array (`stand_ins`). What a device cannot do is
refused.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import types as python_types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from tapegrad.cuda.toolkit import known_ufuncs
from tapegrad.kernels import native
from tapegrad.kernels.intrinsics import as_float
from tapegrad.transform.base import Derivative
from tapegrad.transform.deferred import runtime
from tapegrad.transform.device import stand_ins
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend.liveness import times_assigned
from tapegrad.transform.frontend.source import MISSING, Source
from tapegrad.transform.functions import stop_gradient
from tapegrad.transform.ir import name, names_in, take
from tapegrad.transform.kinds import is_array, is_dispatcher
from tapegrad.transform.nodes import attribute, element_of, tuple_of
from tapegrad.transform.syntax import binding, items_of, leaves, name_of, subtree, text_of
from tapegrad.transform.trees import quoted_block

TAPE = "thread_tape"
_GROWTH = re.compile(r"grown_tangent(_\d+)?")  # derived from that of the runtime
_ROWS = (runtime.row, runtime.owned_row)
_TAKING = (runtime.take_tape, runtime.take_owned_tape)
_OF_TAPES = frozenset(map(id, (*_TAKING, *_ROWS, runtime.grown, np.zeros_like)))
_VALUES = {np.empty: None, np.zeros: 0.0, np.ones: 1.0}


@dataclass(frozen=True)
class Entry:
    """The function of the device that the threads begin with.

    Attributes
    ----------
    run
        The function. It takes its arguments, arrays that are all 0, and the tape of the thread.
    buffers
        For each of these arrays, the position of the argument that has its shape.
    returned
        For each leaf of the result, the position of the array among these; None for others.
    has_tape
        Whether it takes a tape.
    """

    run: Any
    buffers: list[int]
    returned: list[int | None]
    has_tape: bool


class DeviceFunctions:
    """Makes functions of a device.

    Parameters
    ----------
    cuda
        The module `numba.cuda`.
    is_simulated
        Whether numba simulates the device.
    """

    def __init__(self, cuda: Any, is_simulated: bool) -> None:
        self.cuda = cuda
        self.made: dict[int, Any] = {}
        self.with_tape: set[int] = set()  # those that take the tape of the thread
        self.open: list[int] = []
        self.ufuncs = {} if is_simulated else stand_ins.ufuncs(cuda, known_ufuncs())
        known = stand_ins.RUNTIME | stand_ins.bits(cuda, is_simulated)
        self.stand_ins: dict[int, Any] = {
            id(getattr(runtime, name)): f for name, f in known.items()
        }
        self.stand_ins[id(stop_gradient)] = stand_ins.stop_gradient
        self.stand_ins[id(as_float)] = stand_ins.as_float
        self.stand_ins[id(np.where)] = stand_ins.where

    def entry(self, function: Any, kinds: tuple[Any, ...]) -> Entry:
        """Return the function that the threads begin with, for arguments of some types."""
        source = Source(function)
        rewriting = _Entry(self, source, kinds)
        if (called := rewriting.only_calls()) is not None:
            return self.entry(called.implementation(kinds).py_func, kinds)
        made = self._compiled(source, rewriting)
        buffers = list(rewriting.buffers)
        params = [rewriting.params.index(rewriting.buffers[array]) for array in buffers]
        returned = [buffers.index(n) if n in buffers else None for n in rewriting.returned]
        return Entry(made, params, returned, rewriting.has_tape)

    def has(self, value: Any) -> bool:
        """Whether something is called that becomes a function of the device."""
        return id(value) in self.stand_ins or is_dispatcher(value)

    def of(self, value: Any) -> Any:
        """Return the device function of a compiled one, or of one that has a stand-in."""
        key = id(value)
        if key not in self.made:
            if key in self.open:
                raise Source(value.py_func).refuse(
                    f"{value.__name__} calls itself, which functions on a device cannot", 0
                )
            self.open.append(key)
            if key in self.stand_ins:
                self.made[key] = self.stand_in(self.stand_ins[key])
            else:
                source = Source(value.py_func)
                rewriting = _Callee(self, source)
                self.made[key] = self._compiled(source, rewriting)
                if rewriting.has_tape:
                    self.with_tape.add(key)
            self.open.pop()
        return self.made[key]

    def stand_in(self, function: Callable[..., Any]) -> Any:
        """Return a function as one of the device."""
        return self.cuda.jit(device=True)(function)

    def _compiled(self, source: Source, rewriting: _Callee) -> Any:
        tree = rewriting.visit(copy.deepcopy(source.tree))
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        key = native.fingerprint(text.encode(), repr(id(rewriting)).encode())
        made = native.compile_source(key, text, tree.name)
        made.__globals__.update(rewriting.names)
        return self.cuda.jit(device=True)(made)


class _Callee(ast.NodeTransformer):
    """Rewrites a function that another one on the device calls."""

    def __init__(self, functions: DeviceFunctions, source: Source) -> None:
        self.functions = functions
        self.source = source
        self.names: dict[str, Any] = {}  # global names of the function on the device
        arguments = source.tree.args
        self.params = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        self.assigned = Counter(self.params) + times_assigned([source.tree])
        used = set(names_in(source.tree))
        self.taken = used.union(self.params, [TAPE])
        self.aliases: dict[int, str] = {}  # names that are no names of its own, by ids of values
        self.tapes: set[str] = set()  # names that are made by taking the tape
        self.passes_tape = False
        self.is_inside = False  # of the function that is rewritten
        self.depth = 0  # of loops
        self.shapes: dict[str, tuple[int, ...]] = {}  # of arrays in local memory
        self.bindings = list(filter(None, map(binding, subtree(source.tree))))
        self.assignments = {n: value for n, value in self.bindings if self.assigned[n] == 1}

    @property
    def has_tape(self) -> bool:
        """Whether the function takes the tape of the thread, or calls one that does."""
        return bool(self.tapes) or self.passes_tape

    def refuse(self, what: str, node: ast.AST) -> TransformError:
        """Return the error for a construct."""
        return self.source.refuse(f"{what}, which a function on a device cannot do", node)

    def lookup(self, node: ast.expr) -> Any:
        """Return the value of a name, or of an attribute of a module, from outside the function."""
        match node:
            case ast.Name(id=text):
                return MISSING if text in self.assigned else self.source.lookup(text)
            case ast.Attribute(base, text):
                module = self.lookup(base)
                if isinstance(module, python_types.ModuleType):
                    return getattr(module, text, MISSING)
        return MISSING

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if self.is_inside:
            raise self.refuse("it defines a function", node)
        self.is_inside = True
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
            raise self.refuse("it takes a variable number of arguments", node)
        node.args.defaults, node.decorator_list = [], []
        for argument in (*node.args.posonlyargs, *node.args.args):
            argument.annotation = None
        node.returns = None
        node.body = [part for statement in node.body for part in _as_list(self.visit(statement))]
        node.args.args += [ast.arg(name) for name in self.added()]
        return node

    def added(self) -> list[str]:
        """Return the arguments of the function on the device that follow its own."""
        return [TAPE] if self.has_tape else []

    # -- names --------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> Any:
        value = self.lookup(node)
        if value is MISSING or value is getattr(builtins, node.id, MISSING):
            return node
        if self.functions.has(value):
            raise self.refuse(f"it uses the function {node.id} as a value", node)
        self.names[node.id] = value
        return node

    def alias(self, stem: str, value: Any, stand_in: Any) -> str:
        """Return the name of what stands for a value, unlike all names of the function."""
        if id(value) not in self.aliases:
            self.aliases[id(value)] = take(stem, self.taken)
            self.names[self.aliases[id(value)]] = stand_in
        return self.aliases[id(value)]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if self.functions.has(self.lookup(node)):
            raise self.refuse(f"it uses the function {text_of(node)} as a value", node)
        self.generic_visit(node)
        return node

    # -- statements ---------------------------------------------------------------------------

    def visit_Raise(self, node: ast.Raise) -> Any:
        """Leave out the message: the host computes the item again and has it."""
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(error, None)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return ast.Assert(self.visit(node.test), None)

    def visit_For(self, node: ast.For) -> Any:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> Any:
        self.depth += 1
        found = self.generic_visit(node)
        self.depth -= 1
        return found

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node:
            case ast.Assign([target, *_], ast.Call(function) as call):
                called = self.lookup(function)
                made = self.tape(target, called, call)
                if not made and (array := name_of(target)):
                    made = self.array(array, called, call)
                if made:
                    return made
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> Any:
        parts = self.parts_of_arrays()
        for leaf in leaves(node.value) if node.value else []:
            if self.is_part(leaf, parts):
                raise self.refuse("it returns an array that it makes", node)
        return self.generic_visit(node)

    def parts_of_arrays(self) -> set[str]:
        """Return the names of arrays in local memory, and of what may be a part of them."""
        found, before = set(self.shapes), -1
        while before != len(found):
            before = len(found)
            found |= {target for target, value in self.bindings if self.is_part(value, found)}
        return found

    def is_part(self, node: ast.AST, arrays: set[str]) -> bool:
        """Whether a value may share elements with arrays."""
        match node:
            case ast.Name(id=array):
                return array in arrays
            case ast.Subscript(base, index):
                parts, shape = items_of(index), self.shapes.get(name_of(base))
                is_element = shape is not None and len(parts) == len(shape)
                if is_element and not any(isinstance(part, ast.Slice) for part in parts):
                    return False
                return self.is_part(base, arrays)
            case ast.Call(_, arguments):
                return any(self.is_part(part, arrays) for part in arguments)
            case ast.Tuple() | ast.IfExp():
                return any(self.is_part(part, arrays) for part in ast.iter_child_nodes(node))
        return False

    def tape(self, target: ast.expr, called: Any, call: ast.Call) -> list[ast.stmt]:
        """Return what takes the tape, its tangents or parts of it, nothing for other calls."""
        names = [text_of(part) for part in leaves(target)]
        if id(called) not in _OF_TAPES and not self._is_growth_of_both(called):
            return []
        given = [self.visit(argument) for argument in call.args]
        if any(called is taking for taking in _TAKING):
            if self.has_tape:
                raise self.refuse("it uses two tapes at the same time", call)
            self.tapes.add(names[0])
            part = "x = tape" if called is _TAKING[0] else "x = tape[: tape.size // 2]"
            return quoted_block(part, x=names[0], tape=TAPE)
        if called is np.zeros_like and name_of(given[0]) in self.tapes:
            tangents = "x = tape[tape.size // 2 :]\nx[:] = 0.0"
            return quoted_block(tangents, x=names[0], tape=TAPE)
        if any(called is row for row in _ROWS):
            tape, top, length = given
            part = "x = tape[top : top + length]"
            return quoted_block(part, x=names[0], tape=tape, top=top, length=length)
        if called is not np.zeros_like:
            check = stand_ins.check_length
            alias = self.alias("check_length", check, self.functions.stand_in(check))
            template = "check(tape, top, count)"
            found = quoted_block(
                template, check=alias, tape=given[0], top=given[1], count=len(names)
            )
            for target_name, value in zip(names, given[::2], strict=False):
                found += quoted_block("x = y", x=target_name, y=value)
            return found
        return []

    def _is_growth_of_both(self, called: Any) -> bool:
        """Whether a function is the derivative of the one that makes a tape longer."""
        if not is_dispatcher(called) or not _GROWTH.fullmatch(called.__name__):
            return False
        return called.py_func.__globals__.get("runtime") is runtime  # it is generated

    def is_made_once(self, array: str) -> bool:
        """Whether the statement that is visited runs once, and alone assigns a name."""
        return not self.depth and self.assigned[array] == 1

    def array(self, target: str, maker: Any, call: ast.Call) -> list[ast.stmt]:
        """Return what makes an array in local memory, nothing for calls that do not."""
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        value: float | None = None
        items: list[ast.expr] = []
        shape: tuple[int, ...] | None = None
        if maker in (np.zeros_like, np.empty_like) and given is not None:
            shape = self.shapes.get(text_of(given))
            value = 0.0 if maker is np.zeros_like else None
        elif maker in _VALUES and given is not None:
            shape, value = self.constant_shape(given), _VALUES[maker]
        elif maker is np.array and isinstance(given, ast.List):
            items, shape = given.elts, (len(given.elts),)
            if not any(
                isinstance(item, ast.Constant) and type(item.value) is float for item in items
            ):
                shape = None  # of integers, perhaps
        if shape is None or not self.is_made_once(target):
            return []
        self.shapes[target] = shape
        cuda = self.alias("cuda", self.functions.cuda, self.functions.cuda)
        kind = attribute(name(self.alias("np", np, np)), "float64")
        extents = tuple_of(map(ast.Constant, shape))
        made = "x = cuda.local.array(shape, kind)"
        found = quoted_block(made, x=target, cuda=cuda, shape=extents, kind=kind)
        if value is not None:
            every = element_of(target, [ast.Slice(None, None, None) for _ in shape])
            found += quoted_block("x = value", x=every, value=value)
        for place, item in enumerate(items):
            found += quoted_block("x[k] = y", x=target, k=place, y=self.visit(item))
        return found

    def constant_shape(self, node: ast.expr) -> tuple[int, ...] | None:
        """Return a shape of constants, None for others."""
        node = self.assigned_value(node)
        parts = map(self.assigned_value, items_of(node))
        found: list[Any] = [getattr(part, "value", None) for part in parts]
        return tuple(found) if all(type(extent) is int for extent in found) else None

    def assigned_value(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is assigned once, other expressions as they are."""
        return self.assignments.get(name_of(node), node)

    # -- calls --------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        shown = text_of(node.func)
        value = self.lookup(node.func)
        if value is numba.prange:
            node.func = ast.Name("range", ast.Load())
        elif isinstance(value, Derivative):
            raise self.refuse(f"it computes the derivative {shown}", node)
        elif self.functions.has(value):
            stem = f"device_{shown.rpartition('.')[2]}"
            node.func = ast.Name(self.alias(stem, value, self.functions.of(value)), ast.Load())
            if id(value) in self.functions.with_tape:
                if self.tapes:
                    raise self.refuse("it uses two tapes at the same time", node)
                self.passes_tape = True
                node.args.append(ast.Name(TAPE, ast.Load()))
        elif isinstance(value, np.ufunc) and value in self.functions.ufuncs:
            node.func = ast.Name(self.of_ufunc(value), ast.Load())
        elif (conversion := self.conversion_of_bits(node)) is not None:
            alias = self.alias("device_bits", conversion, self.functions.of(conversion))
            assert isinstance(node.func, ast.Attribute)
            node = ast.Call(ast.Name(alias, ast.Load()), [node.func.value], [])
        elif shown.startswith("runtime."):
            raise self.refuse(
                f"it keeps or makes arrays of a size that is not known ({shown})", node
            )
        elif not self.is_of_numbers(value, node):
            raise self.refuse(f"it calls {shown}", node)
        return self.generic_visit(node)

    def conversion_of_bits(self, node: ast.Call) -> Any:
        """Return what gives the bits of a number another type, as its `view` does, or None."""
        match node:
            case ast.Call(ast.Attribute(ast.Call(conversion), "view"), [kind]):
                given, wanted = self.lookup(conversion), self.lookup(kind)
                if given is np.float64 and wanted is np.int64:
                    return runtime.from_bits
                if given is np.int64 and wanted is np.float64:
                    return runtime.to_bits
        return None

    def of_ufunc(self, ufunc: np.ufunc) -> str:
        """Return the name of what stands for a function of NumPy."""
        found = self.functions.ufuncs[ufunc]
        is_python = isinstance(found, python_types.FunctionType)
        stand_in = self.functions.stand_in(found) if is_python else found
        return self.alias(f"numpy_{ufunc.__name__}", ufunc, stand_in)

    def is_of_numbers(self, value: Any, node: ast.Call) -> bool:
        """Whether a device can call a function with numbers."""
        if isinstance(node.func, ast.Name):
            return value is getattr(builtins, node.func.id, MISSING) or isinstance(value, type)
        module = getattr(value, "__module__", None)
        return isinstance(value, (np.ufunc, type)) or module == "math"


class _Entry(_Callee):
    """Rewrites the function that the threads begin with: it may have arrays and a tape."""

    def __init__(self, functions: DeviceFunctions, source: Source, kinds: tuple[Any, ...]) -> None:
        super().__init__(functions, source)
        self.kinds = dict(zip(self.params, kinds, strict=True))
        self.buffers: dict[str, str] = {}  # arguments, by the arrays made in their shapes
        self.returned: list[str] = []

    def only_calls(self) -> Derivative | None:
        """Return the derivative that is called with the arguments, if that is all."""
        match self.source.tree.body:
            case [ast.Return(ast.Call(function, args))] if [*map(text_of, args)] == self.params:
                value = self.lookup(function)
                return value if isinstance(value, Derivative) else None
        return None

    def added(self) -> list[str]:
        return [*map(_memory, self.buffers), *super().added()]

    def visit_Return(self, node: ast.Return) -> Any:
        found = [text_of(leaf) for leaf in leaves(node.value)] if node.value else []
        if self.returned and self.returned != found and self.buffers:
            raise self.refuse("it returns arrays in several places", node)
        self.returned = found
        if (array := name_of(node.value)) in self.buffers:
            # of arrays, numba lets a function on a device return its arguments only
            node.value = ast.Name(_memory(array), ast.Load())
        return super().visit_Return(node)

    def array(self, target: str, maker: Any, call: ast.Call) -> list[ast.stmt]:
        like = text_of(call.args[0]) if len(call.args) == 1 else ""
        is_given = is_array(self.kinds.get(like)) and self.assigned[like] == 1  # still the argument
        if maker is np.zeros_like and is_given and self.is_made_once(target):
            self.buffers[target] = like
            return quoted_block("x = memory", x=target, memory=_memory(target))
        return super().array(target, maker, call)


def _memory(array: str) -> str:
    """Return the argument for the memory of an array."""
    return f"{array}_memory"


def _as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]
