"""The body of a normal form, while it is written."""

from __future__ import annotations

import ast
import builtins
import enum
import keyword
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.frontend.breaks import Departures
from tapegrad.transform.frontend.constants import is_plain_tuple, plain
from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.frontend.items import Items
from tapegrad.transform.frontend.source import MISSING, Source
from tapegrad.transform.ir import Block, Let, constant, name, names_in, take
from tapegrad.transform.syntax import nodes_in, subtree, text_of

# names that have another meaning in generated code
RESERVED = {
    "np", "math", "numba", "operator", "runtime", "arrays", "ops", "scalar_ops", "tape", "top",
    "needed", "turn", "undefined", *keyword.kwlist, *dir(builtins),
}  # fmt: skip
# names that generated code derives from others
_MADE = re.compile(
    r"^(needed|held|class)_|_(part|seed|kept|row|next|forward|reverse|tangent|gradient|pullback"
    r"|pushforward|vjp|jvp)(_\d+)?$"
)
# methods that change their object
CHANGING = {
    "add", "append", "clear", "discard", "extend", "fill", "insert", "itemset", "partition", "pop",
    "popitem", "put", "remove", "resize", "reverse", "setdefault", "sort", "update",
}  # fmt: skip

_WAY_OUT = {
    ast.SetComp: "a set comprehension; add the items in a loop",
    ast.GeneratorExp: "a generator expression, which numba does not compile either; use a list, "
    "sum([...]), or a loop",
    ast.AsyncFunctionDef: "an inner coroutine; define a function",
    ast.Try: "try/except; test the condition instead",
    ast.With: "a with block; move it out of the function",
    ast.Starred: "a starred expression; write the items out",
    ast.Yield: "a generator; fill an array",
    ast.YieldFrom: "a generator; fill an array",
    ast.Global: "a global statement; pass the value as an argument",
    ast.Nonlocal: "a nonlocal statement; return the value and assign it",
    ast.ClassDef: "a class; define it outside",
    ast.Match: "match; write if and elif",
    ast.Import: "an import; put it at the top of the module",
    ast.ImportFrom: "an import; put it at the top of the module",
}


def is_made(identifier: str) -> bool:
    """Whether a name has a form that generated code uses."""
    return _MADE.search(identifier) is not None


class Body:
    """The body of a normal form while it is written: what is appended to its current block.

    Parameters
    ----------
    source
        The function.
    departures
        The places at which loops are left.

    Attributes
    ----------
    block
        The current block.
    line
        The current line of the function.
    local
        Its variables.
    taken
        Names that are in use.
    statics
        Values from outside the function, by the texts that stand for them.
    assigned
        The values of each variable.
    iterated
        Sequences that loops index, by name.
    constants
        Names that are computed from constants only.
    """

    def __init__(self, source: Source, departures: Departures) -> None:
        self.source = source
        tree = source.tree
        self.taken = set(names_in(tree))
        self.taken |= {argument.arg for argument in nodes_in(tree, ast.arg)}
        self.taken |= RESERVED
        self.local: set[str] = set()
        self.statics: dict[str, Any] = {}
        self.assigned: dict[str, list[ast.expr]] = {}
        self.iterated: dict[str, ast.expr] = {}
        self.constants: set[str] = set()
        self.departures = departures
        self.block: Block = []
        self.line = tree.lineno

    def fresh(self, stem: str) -> str:
        """Return an unused name made from a stem."""
        stem = stem.rstrip("0123456789").rstrip("_") or "t"
        if is_made(stem):
            stem = f"v_{stem}"
        return take(stem, self.taken)

    def inside(self, make: Callable[[], None]) -> Block:
        """Return what `make` appends."""
        outer, self.block = self.block, []
        make()
        found, self.block = self.block, outer
        return found

    def refuse(self, what: str, where: ast.AST | int) -> Exception:
        """Return the error for a part of the function, or a line of it."""
        return self.source.refuse(what, where)

    def refuse_node(self, node: ast.AST) -> Exception:
        known = _WAY_OUT.get(type(node))
        what = known or f"{type(node).__name__} is not understood here; write it another way"
        return self.refuse(f"cannot differentiate {what}" if known else what, node)

    def builtin(self, identifier: str) -> ast.expr:
        return self.outside(identifier, getattr(builtins, identifier))

    def let(self, expr: ast.expr, stem: str) -> ast.Name:
        self.check_use(expr)
        target = self.fresh(stem)
        if isinstance(expr, (ast.Compare, ast.UnaryOp, ast.BinOp, ast.Constant)):
            if self.constants.issuperset(names_in(expr)):
                self.constants.add(target)
        self.block.append(Let(target, expr, self.line))
        return name(target)

    def static_value(self, node: ast.expr) -> Any:
        """Return the value of an expression without local variables, or MISSING."""
        match node:
            case ast.Name(id=identifier):
                return MISSING if identifier in self.local else self.source.lookup(identifier)
            case ast.Attribute(owner, attr):
                base = self.static_value(owner)
                if isinstance(base, (types.ModuleType, type)):
                    return getattr(base, attr, MISSING)
                if isinstance(base, enum.Enum) and attr in ("value", "name"):
                    return getattr(base, attr)
                if base is not MISSING and isinstance(base, tuple) and hasattr(base, "_fields"):
                    return getattr(base, attr, MISSING)
        return MISSING

    def static(self, node: ast.expr) -> ast.expr | None:
        """Return a name or constant for an expression without local variables, or None."""
        value = self.static_value(node)
        if value is MISSING:
            if isinstance(node, ast.Name) and node.id not in self.local:
                raise self.refuse(
                    f"the name {node.id!r} is not defined; define it before differentiating", node
                )
            return None
        number = plain(value)
        if number is not MISSING:
            return constant(number)
        if is_plain_tuple(value):
            return self.let_static_tuple(value)
        return self.outside(text_of(node), value)

    def outside(self, text: str, value: Any) -> ast.Name:
        """Register a value from outside the function; return the name for it."""
        if self.statics.setdefault(text, value) is not value:
            raise self.refuse(
                f"{text} means something of your own here, where generated code needs the usual; "
                "give it another name",
                self.line,
            )
        return name(text)

    def let_static_tuple(self, value: tuple[Any, ...]) -> ast.expr:
        items = [
            self.let_static_tuple(item) if isinstance(item, tuple) else constant(plain(item))
            for item in value
        ]
        return self.let(ast.Tuple(items, ast.Load()), "t")

    def check_use(self, expr: ast.expr) -> None:
        """Refuse an operation on a list of floats, which is no value of the normal form."""
        if any(isinstance(part, Items) for part in subtree(expr)):
            raise self.refuse(
                "cannot differentiate this use of a list of floats; make it an array first: "
                "np.array(items)",
                self.line,
            )

    def has_effects(self, node: ast.AST) -> bool:
        """Whether evaluating an expression may have side effects."""
        for part in subtree(node):
            match part:
                case ast.NamedExpr() | Inlined():
                    return True
                case ast.Call(function) if not self._is_pure(function):
                    return True
        return False

    def _is_pure(self, function: ast.expr) -> bool:
        """Whether a function has no side effects."""
        value = self.static_value(function)
        if value is MISSING:
            return isinstance(function, ast.Attribute) and function.attr not in CHANGING
        if isinstance(value, type):
            return True
        module = getattr(value, "__module__", None) or ""
        if module.startswith("numpy.random"):
            return False
        known = isinstance(value, (types.BuiltinFunctionType, np.ufunc))
        return known or module.split(".")[0] in ("numpy", "math", "tapegrad")
