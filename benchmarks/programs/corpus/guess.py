"""What the parameters of a function may be: read off its text, its names and its defaults.

For every parameter there is a list of kinds, likely ones first. A kind is a short code, which
`text` turns into the text of an argument (`inputs`).
"""

import ast
import heapq
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import sigutils
from numba.core.dispatcher import Dispatcher


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ARRAY_ATTRIBUTES = set(dir(np.ndarray))
TAKES_ARRAY = words("""
sum mean std var max min amax amin argmax argmin sort argsort cumsum cumprod prod diff
median percentile quantile concatenate interp searchsorted any all zeros_like empty_like ones_like
full_like ascontiguousarray asarray dot vdot inner outer cross nansum nanmean nanmax nanmin nonzero
where unique roll flip append vstack hstack convolve correlate ravel
""")
TAKES_MATRIX = {"solve", "inv", "det", "cholesky", "eig", "eigh", "eigvals", "svd", "trace", "diag"}
TAKES_SIZE = {"range", "prange", "zeros", "empty", "ones", "full", "arange", "eye", "identity"}
SIZES = ("n", "num", "len", "size", "length", "count", "nb", "dim")
WHOLE = words("""
i j order degree window period lag horizon idx index steps iterations iters maxiter max_iter
numiter nlags seed start stop end width bins lookback step lags id pos col row axis ddof level depth
timeperiod minp
""")
CHAIN = ["a1", "a2", "i3", "ai", "a3"]


@dataclass
class Evidence:
    """What the text says of one parameter."""

    dims: int = 0
    array: bool = False
    whole: bool = False
    positions: bool = False
    truth: bool = False
    called: bool = False
    foreign: bool = False
    items: int = 0
    words: set[str] = field(default_factory=set)

    def join(self, other: "Evidence") -> None:
        """Take over what is said of the parameter of a function that it is passed to."""
        self.dims = max(self.dims, other.dims)
        self.items = max(self.items, other.items)
        for name in ("array", "whole", "positions", "truth", "called", "foreign"):
            setattr(self, name, getattr(self, name) or getattr(other, name))
        self.words |= other.words


def tree_of(function: Any) -> ast.FunctionDef | None:
    """Return the tree of a function's text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def values_of(node: ast.AST) -> Iterator[str]:
    """Names whose own values make up a value: not what is read at them, or passed to a call."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Slice, ast.Tuple)):
        for child in ast.iter_child_nodes(node):
            yield from values_of(child)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("int", "min", "max", "abs"):
            for child in node.args:
                yield from values_of(child)


class Reader(ast.NodeVisitor):
    """Collects evidence of the parameters of a function."""

    def __init__(self, function: Any, depth: int) -> None:
        self.function = function
        self.depth = depth
        self.found = {name: Evidence() for name in inspect.signature(function).parameters}
        self.alias: dict[str, str] = {}

    def of(self, node: ast.AST) -> Evidence:
        """Return what is known of a name; an evidence of nothing for what is no parameter."""
        name = node.id if isinstance(node, ast.Name) else node if isinstance(node, str) else ""
        return self.found.get(name) or Evidence()

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """``p[i, j]`` and ``p.shape[k]``."""
        index = node.slice
        chain, base = 0, node.value
        while isinstance(base, ast.Subscript):
            chain, base = chain + 1, base.value
        if isinstance(base, ast.Name):
            seen = self.of(base)
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            parts = [p for p in parts if not (isinstance(p, ast.Constant) and p.value is None)]
            seen.array = True
            seen.dims = max(seen.dims, len(parts) + chain)
            if any(isinstance(p, ast.Constant) and isinstance(p.value, str) for p in parts):
                seen.foreign = True
        if isinstance(base, ast.Attribute) and base.attr == "shape":
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                seen = self.of(base.value)
                seen.dims = max(seen.dims, index.value + 1)
        for name in values_of(index):
            self.of(name).whole = True
        for inner in ast.walk(index):
            if isinstance(inner, ast.Subscript):
                self.of(inner.value).positions = True
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """``p.shape``."""
        seen = self.of(node.value)
        seen.array = True
        seen.foreign |= node.attr not in ARRAY_ATTRIBUTES
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """``a, b = p.shape`` and ``a, b = p``."""
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(node.value, ast.Name):
                self.of(node.value).items = len(target.elts)
            if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
                seen = self.of(node.value.value)
                seen.dims = max(seen.dims, len(target.elts))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        """``for x in p``."""
        self.of(node.iter).array = True
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """``p @ q``."""
        if isinstance(node.op, ast.MatMult):
            self.of(node.left).array = self.of(node.right).array = True
        self.generic_visit(node)

    def visit_If(self, node: Any) -> None:
        """``if p``, ``if not p`` and ``if p and q``."""
        tests = [node.test]
        while tests:
            test = tests.pop()
            if isinstance(test, ast.BoolOp):
                tests += test.values
            elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                tests.append(test.operand)
            else:
                self.of(test).truth = True
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_Compare(self, node: ast.Compare) -> None:
        """``p == "text"``."""
        for other in node.comparators:
            for one in other.elts if isinstance(other, (ast.Tuple, ast.List)) else [other]:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    self.of(node.left).words.add(one.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Calls of parameters, of NumPy's functions, and of functions whose text can be read."""
        if isinstance(node.func, ast.Name):
            self.of(node.func).called = True
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in TAKES_SIZE:
            for argument in node.args[: 3 if "range" in name else 1]:
                for one in values_of(argument):
                    self.of(one).whole = True
        if name in ("len", "enumerate", "zip", *TAKES_ARRAY, *TAKES_MATRIX):
            for argument in node.args:
                self.of(argument).array = True
                if name in TAKES_MATRIX:
                    self.of(argument).dims = max(self.of(argument).dims, 2)
        callee = self.callee(node.func)
        if callee is not None and self.depth < 4:
            theirs = evidence(callee, self.depth + 1)
            names = list(theirs)
            for place, argument in enumerate(node.args[: len(names)]):
                self.of(argument).join(theirs[names[place]])
            for keyword in node.keywords:
                if keyword.arg in theirs:
                    self.of(keyword.value).join(theirs[keyword.arg])
        self.generic_visit(node)

    def callee(self, node: ast.AST) -> Any:
        """Return the function that a call names, if it is one whose text can be read."""
        try:
            value = eval(compile(ast.Expression(node), "", "eval"), self.function.__globals__, {})
        except Exception:
            return None
        value = getattr(value, "py_func", value)
        module = getattr(value, "__module__", None) or ""
        if not inspect.isfunction(value) or module.split(".")[0] in ("numpy", "numba"):
            return None
        return value


def evidence(function: Any, depth: int = 0) -> dict[str, Evidence]:
    """Return what the text of a function says of its parameters."""
    reader = Reader(function, depth)
    tree = tree_of(function)
    if tree is not None:
        for statement in tree.body:
            reader.visit(statement)
    return reader.found


def kinds_of(dispatcher: Dispatcher) -> list[list[str]] | None:
    """Return the kinds that each parameter may be of, likely ones first; None for objects."""
    function = dispatcher.py_func
    given = dispatcher.__dict__.get("given_signatures")
    if given:
        return kinds_given(given)
    found = []
    seen = evidence(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            return None
        one = kinds_of_parameter(name.lower(), parameter.default, seen[name])
        if not one:
            return None
        found.append(one)
    return found


def kinds_of_parameter(name: str, default: Any, seen: Evidence) -> list[str]:
    """Return the kinds of one parameter."""
    if default is not inspect.Parameter.empty:
        return kinds_of_default(default, name, seen)
    if seen.words:
        return [f"={min(seen.words)!r}"]
    if seen.called:
        return ["=bowl"]
    if seen.foreign:
        return []
    parts = name.strip("_").split("_")
    counts = parts[0] in SIZES or name.strip("_") in ("n", "ns", "nt", "nx", "ny", "nrows", "ncols")
    if seen.items and not seen.dims:
        return [f"t{seen.items}", *CHAIN]
    if seen.dims or seen.array:
        dims = min(max(seen.dims, 1), 3)
        kinds = ["ai" if dims == 1 else "aI"] if seen.positions else []
        kinds += [f"a{dims}"] + (["a2"] if dims == 1 else ["a1"] if dims == 2 else [])
        if not seen.dims:
            kinds.append("f")
        return list(dict.fromkeys([*kinds, "ai", "ab", "a3", "t3"]))
    if seen.whole:
        return ["in", "i3", "i2"] if counts else ["i3", "in", "i2", "i1"]
    if seen.truth:
        return ["=True", "=False", "f"]
    if counts or name in WHOLE or any(part in WHOLE for part in parts if len(part) > 2):
        return ["in" if counts else "i3", "f", *CHAIN]
    if name.startswith(("is_", "use_", "with_")) or "flag" in name:
        return ["=True", "=False", "f"]
    return ["f", *CHAIN]


def kinds_of_default(default: Any, name: str, seen: Evidence) -> list[str]:
    """Return the kinds of a parameter that may be left out."""
    if isinstance(default, float):
        return [f"d{default!r}"] if np.isfinite(default) and default else [f"={default!r}", "f"]
    if isinstance(default, (bool, int, str)):
        return [f"={default!r}", "f"]
    if default is None:
        return ["=None", "a1", "f"]
    if isinstance(default, tuple) and all(isinstance(x, (int, float)) for x in default):
        return [f"={default!r}"]
    if isinstance(default, Dispatcher) or callable(default):
        return ["=bowl"]
    return []


def kinds_given(signatures: Sequence[Any]) -> list[list[str]] | None:
    """Return the kinds that given signatures ask for: the one with most doubles."""

    def doubles(types_: Sequence[Any]) -> int:
        return sum(getattr(t, "dtype", t) is types.float64 for t in types_)

    choices = [sigutils.normalize_signature(sig)[0] for sig in signatures]
    found = []
    for one in max(choices, key=doubles):
        kind = kind_given(one)
        if kind is None:
            return None
        found.append([kind] if not kind.startswith("i") else ["i3", "in", "i2", "i1"])
    return found


def kind_given(one: Any) -> str | None:
    """Return the kind of a type of numba's."""
    if isinstance(one, types.Array):
        element = kind_given(one.dtype)
        prefix = {"f": "a", "s": "s", "i3": "j", "=True": "b"}.get(element or "")
        return f"{prefix}{one.ndim}" if prefix else None
    if isinstance(one, types.Float):
        return "f" if one.bitwidth == 64 else "s"
    if isinstance(one, types.Boolean):
        return "=True"
    if isinstance(one, types.Integer):
        return "i3"
    if isinstance(one, types.NoneType):
        return "=None"
    return None


def combinations(kinds: Sequence[Sequence[str]], most: int) -> Iterator[tuple[str, ...]]:
    """Choices of one kind a parameter, likely ones first; parameters of like names go together."""
    start = (0,) * len(kinds)
    queue, known = [(0, start)], {start}
    for _ in range(most):
        if not queue:
            return
        cost, ranks = heapq.heappop(queue)
        yield tuple(k[r] for k, r in zip(kinds, ranks, strict=True))
        steps = [(place,) for place in range(len(kinds))]
        steps.append(tuple(p for p in range(len(kinds)) if kinds[p][0] == "f"))  # all numbers
        steps.append(tuple(p for p in range(len(kinds)) if kinds[p][0] == "a1"))
        for step in steps:
            new = tuple(r + (p in step) for p, r in enumerate(ranks))
            if new not in known and all(r < len(k) for r, k in zip(new, kinds, strict=True)):
                known.add(new)
                heapq.heappush(queue, (cost + 1, new))


DOMAINS = [
    ("0.2", "0.8"),
    ("1.1", "2.9"),
    ("-0.9", "0.9"),
    ("4.0", "9.0"),
    ("0.01", "0.1"),
    ("20.0", "50.0"),
]


def text(kind: str, domain: tuple[str, str], rising: bool) -> str:
    """Return the text of an argument of a kind, with numbers from a domain."""
    low, high = domain
    if kind.startswith("="):
        return kind[1:]
    if kind.startswith("d"):
        value = float(kind[1:])
        return "num({!r}, {!r})".format(*sorted((0.9 * value, 1.1 * value)))
    if kind == "f":
        return f"num({low}, {high})"
    if kind == "s":
        return f"f32(num({low}, {high}))"
    if kind.startswith("t"):
        return "(" + f"num({low}, {high}), " * int(kind[1:]) + ")"
    if kind.startswith("i"):
        return {"in": "N"}.get(kind, kind[1:])
    dims = int(kind[1]) if kind[1].isdigit() else 1 + (kind[1] == "I")
    shape = ", ".join(["N"] * dims)
    if kind in ("ai", "aI") or kind[0] == "j":
        return f"ints(0, 3, {shape})"
    if kind == "ab" or kind[0] == "b":
        return f"flag({shape})"
    made = f"{'asc' if rising else 'arr'}({low}, {high}, {shape})"
    return f"f32({made})" if kind[0] == "s" else made


def type_key(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return what numba compiles for."""
    return tuple(numba.typeof(argument) for argument in arguments)
