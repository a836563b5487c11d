"""Arrays that a loop makes in each iteration, and does not need after it, are made once.

Allocating a small array takes longer than clearing one, and so does counting references to it. The
memory of the iteration before serves again: ``k = np.zeros(n)`` becomes::

    k = runtime.scratch(places, 0, (n,))
    runtime.clear(k)

An array that the next iteration still needs, as a state that is carried, has two places, which
`runtime.swap_scratch` exchanges in each iteration. The function takes ``places`` at its beginning
and gives them back at its end.

No name may refer to the array by the time that its place is used again, and nothing else may hold
it: not the tape, a result, a tuple or a list that is still there, or whatever a call may have put
it into.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.frontend.liveness import live
from tapegrad.transform.independence.sums import blocks_of
from tapegrad.transform.independence.uses import BUILTINS, READING, TAPE, Facts
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import PARALLEL
from tapegrad.transform.verifier.code import leaves
from tapegrad.transform.verifier.memory import FRESH_METHODS, SHAPE, VIEWS

_MAKERS = frozenset(
    ["np.array", "np.copy", "np.empty", "np.empty_like", "np.zeros", "np.zeros_like"]
)
_NEW = READING | {"array", "dot", "empty", "full", "full_like", "ones", "vdot", "zeros"}
_PASSING = frozenset(["enumerate", "list", "reversed", "tuple", "zip"])
_IN_PLACE = frozenset(["fill", "sort"])
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare)
_GROUPS = (ast.BoolOp, ast.IfExp, ast.List, ast.Starred, ast.Tuple)


@dataclass(frozen=True)
class Holding:
    """What a function does with arrays that it is given.

    Attributes
    ----------
    kept
        The positions of arguments that something may hold when it returns, besides its results.
    results
        For each part of the result, the positions of arguments that it may share elements with.
    """

    kept: frozenset[int]
    results: tuple[frozenset[int], ...]


HoldingOf = Callable[[str], Holding | None]


class Flow:
    """Where the arrays of a function may go.

    Parameters
    ----------
    tree
        The function.
    facts
        What is known of its names.
    holding_of
        Returns what a function that is called does, None for functions of the user.
    """

    def __init__(self, tree: ast.FunctionDef, facts: Facts, holding_of: HoldingOf) -> None:
        self.tree = tree
        self.facts = facts
        self.holding_of = holding_of
        self.kept: set[str] = set()  # names of arrays that something may hold for longer
        self.passed: dict[str, set[str]] = {}  # names, and those that may share elements with them
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and node is not tree:
                self._statement(node)
            elif isinstance(node, ast.Call):
                self._call(node)

    def holding(self) -> Holding:
        """Return what the function does with its arguments."""
        last = self.tree.body[-1]
        given = [self.reached([parameter.arg]) for parameter in self.tree.args.args]
        results = leaves(last.value) if isinstance(last, ast.Return) and last.value else []
        is_only = sum(isinstance(node, ast.Return) for node in ast.walk(self.tree)) == 1
        kept = self.kept if is_only else self.kept | self.returned()
        return Holding(
            frozenset(k for k, names in enumerate(given) if names & kept),
            tuple(
                frozenset(k for k, names in enumerate(given) if names & self.holders(result))
                for result in results
            ),
        )

    def returned(self) -> set[str]:
        """Return the names of arrays that results may hold or share elements with."""
        returns = [node for node in ast.walk(self.tree) if isinstance(node, ast.Return)]
        return set().union(*(self.holders(node.value) for node in returns if node.value))

    def reached(self, names: Iterable[str]) -> set[str]:
        """Return names and all those that may share elements with them."""
        found = set(names)
        waiting = list(found)
        while waiting:
            new = self.passed.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    def passed_on(self, body: list[ast.stmt], names: set[str]) -> set[str]:
        """Return the names that may refer to arrays after statements, from those before them."""
        held = set(names)
        for statement in body:
            if isinstance(statement, ast.Assign):
                pairs = self._pairs(statement)
                new = {
                    n
                    for target, value in pairs
                    if self.holders(value) & held
                    for n in self._names(target)
                }
                held -= {
                    n.id for target, _ in pairs for n in leaves(target) if isinstance(n, ast.Name)
                }
                held |= new
            else:
                held |= self._within(statement, held)
        return held

    def _within(self, statement: ast.stmt, names: set[str]) -> set[str]:
        """Return the names that may refer to arrays after a statement with blocks."""
        inside = [node for node in ast.walk(statement) if isinstance(node, (ast.Assign, ast.For))]
        held: set[str] = set()
        found = set(names)
        while found != held:
            held = set(found)
            for node in inside:
                pairs = (
                    self._pairs(node)
                    if isinstance(node, ast.Assign)
                    else [(node.target, node.iter)]
                )
                for target, value in pairs:
                    if self.holders(value) & held:
                        found |= self._names(target)
        return held

    def is_array(self, node: ast.expr) -> bool:
        """Whether an expression is known to be an array of numbers."""
        if not isinstance(node, ast.Name):
            return False
        return node.id == "tape" or is_array(self.facts.kind(node.id))

    def is_part(self, node: ast.expr) -> bool:
        """Whether an expression is known to be an array of numbers, or a part of one."""
        while isinstance(node, ast.Subscript):
            node = node.value
        return self.is_array(node)

    # -- statements ---------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            for target, value in self._pairs(node):
                self._assign(target, self.holders(value))
        elif isinstance(node, ast.For):
            self._assign(node.target, self.holders(node.iter))
        elif isinstance(node, ast.AugAssign):
            target = node.target
            base = target.value if isinstance(target, ast.Subscript) else target
            is_number = isinstance(base, ast.Name) and self._is_number(base.id)
            if not is_number and not self.is_array(base):
                self.kept |= self._names(node)
        elif not isinstance(
            node, (ast.Expr, ast.If, ast.While, ast.Return, ast.Pass, ast.Break, ast.Raise)
        ):
            self.kept |= self._names(node)

    def _pairs(self, node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
        """Return targets with the values that they are assigned."""
        target, value = node.targets[0], node.value
        if len(node.targets) == 1 and isinstance(target, ast.Tuple):
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                return list(zip(target.elts, value.elts, strict=True))
            if isinstance(value, ast.Call) and (found := self._known(value)) is not None:
                parts = leaves(target)
                if len(found.results) == len(parts):
                    given = [ast.Tuple(_taken(value, held), ast.Load()) for held in found.results]
                    return list(zip(parts, given, strict=True))
        return [(target, value) for target in node.targets]

    def _assign(self, target: ast.expr, sources: set[str]) -> None:
        for part in leaves(target):
            if isinstance(part, ast.Name):
                if not self._is_number(part.id):
                    for source in sources:
                        self.passed.setdefault(source, set()).add(part.id)
            elif not isinstance(part, ast.Subscript) or not self.is_array(part.value):
                self.kept |= sources

    def _is_number(self, name: str) -> bool:
        return name in TAPE or self.facts.is_number(name)

    def _names(self, node: ast.AST) -> set[str]:
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - TAPE

    # -- expressions --------------------------------------------------------------------------

    def holders(self, node: ast.expr) -> set[str]:
        """Return the names of arrays that a value may hold or share elements with."""
        if isinstance(node, ast.Name):
            return set() if self._is_number(node.id) else {node.id}
        if isinstance(node, ast.Constant):
            return set()
        if isinstance(node, ast.Subscript):
            return self.holders(node.value)
        if isinstance(node, ast.Attribute):
            return set() if node.attr in SHAPE else self.holders(node.value)
        if isinstance(node, _GROUPS):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return set().union(*map(self.holders, parts))
        if isinstance(node, _OPERATIONS):
            # of tuples and lists the result holds the parts, of arrays it is a new array
            found = [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Tuple, ast.List))]
            return set().union(*(self.holders(n) for n in found if not self.is_array(n)))
        if isinstance(node, ast.Call):
            return self._result(node)
        return self._names(node)

    def _known(self, node: ast.Call) -> Holding | None:
        """Return what a function of the module does, with all of its arguments."""
        found = self.holding_of(node.func.id) if isinstance(node.func, ast.Name) else None
        if found is not None and node.keywords:
            self.kept |= self._names(node)
        return found

    def _result(self, node: ast.Call) -> set[str]:
        """Return the names of arrays that the result of a call may hold or share elements with."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        everything: set[str] = set().union(*map(self.holders, arguments))
        module, _, name = ast.unparse(node.func).rpartition(".")
        if module in ("np", "math", "np.linalg"):
            function = getattr(np, name, None)
            is_new = module != "np" or name in _NEW - VIEWS or isinstance(function, np.ufunc)
            inputs = 2 if name == "dot" else getattr(function, "nin", len(arguments))
            writes = any(keyword.arg == "out" for keyword in node.keywords)
            return set() if is_new and not writes and len(node.args) <= inputs else everything
        if not module and name in BUILTINS:
            return set()
        if (found := self._known(node)) is not None:
            held: set[int] = set().union(*found.results)
            return set().union(*map(self.holders, _taken(node, held)))
        if isinstance(node.func, ast.Attribute) and module not in ("runtime", "arrays"):
            is_new = name in FRESH_METHODS and self.is_part(node.func.value)
            return set() if is_new else everything | self.holders(node.func.value)
        return everything

    def _call(self, node: ast.Call) -> None:
        """Note the arrays that something may hold after a call, besides its result."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        module, _, name = ast.unparse(node.func).rpartition(".")
        if module in ("np", "np.linalg", "math", "arrays", "ops", "scalar_ops"):
            return
        if module == "runtime":
            if name.startswith("push_") and not name.endswith("_elements"):
                self.kept.update(*map(self.holders, arguments))
            return
        if (found := self._known(node)) is not None:
            self.kept.update(*map(self.holders, _taken(node, found.kept)))
        elif isinstance(node.func, ast.Attribute):
            is_known = name in FRESH_METHODS | VIEWS | _IN_PLACE
            if not is_known or not self.is_part(node.func.value):
                self.kept.update(*map(self.holders, arguments))
        elif name not in BUILTINS | _PASSING and not all(map(self._is_plain, arguments)):
            self.kept.update(*map(self.holders, arguments))

    def _is_plain(self, node: ast.expr) -> bool:
        """Whether an argument is known to hold nothing but numbers: a function cannot change it."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(map(self._is_plain, node.elts))
        if isinstance(node, ast.Subscript):
            return self._is_plain(node.value)
        if isinstance(node, ast.Name):
            return self.is_array(node) or self._is_number(node.id)
        return isinstance(node, ast.Constant)


def _taken(call: ast.Call, positions: Collection[int]) -> list[ast.expr]:
    """Return the arguments at some positions."""
    return [argument for k, argument in enumerate(call.args) if k in positions]


@dataclass
class _Site:
    """A statement in a loop that makes an array."""

    block: list[ast.stmt]
    statement: ast.Assign
    loop: ast.For | ast.While
    is_outermost: bool
    shape: ast.expr
    elements: list[str]
    """Statements that set the elements."""

    @property
    def name(self) -> str:
        """The name of the array."""
        target = self.statement.targets[0]
        assert isinstance(target, ast.Name)
        return target.id


def reuse_arrays(
    tree: ast.FunctionDef,
    facts: Facts,
    holding_of: HoldingOf,
    fresh: Callable[[str], str],
) -> bool:
    """Let loops of a function reuse the arrays that they make; return whether there are any."""
    sites = list(_sites(tree.body, [], facts))
    if not sites:
        return False
    flow = Flow(tree, facts, holding_of)
    after: dict[int, set[str]] = {}
    live(tree.body, set(), None, after)
    held = flow.kept | flow.returned()
    places, count = fresh("places"), 0
    for site in sites:
        names = flow.reached([site.name])
        elsewhere = live(site.loop.body, set()) | after[id(site.loop)]
        at_once = 1 if not names & elsewhere else 2
        if names & held or (at_once == 2 and not _is_carried_once(site, names, flow, after)):
            continue
        shape = ast.unparse(site.shape)
        site.statement.value = _expression(f"runtime.scratch({places}, {count}, {shape})")
        at = next(k for k, node in enumerate(site.block) if node is site.statement)
        site.block[at + 1 : at + 1] = map(_statement, site.elements)
        if at_once == 2:
            swap = f"runtime.swap_scratch({places}, {count}, {count + 1})"
            site.block.insert(at, _statement(swap))
        count += at_once
    if count:
        _give_back(tree, f"runtime.give_scratch({places}, {count})", facts, fresh)
        tree.body.insert(0, _statement(f"{places} = runtime.take_scratch({count})"))
    return count > 0


def _is_carried_once(site: _Site, names: set[str], flow: Flow, after: dict[int, set[str]]) -> bool:
    """Whether the iteration after next needs nothing of an array.

    `names` may refer to the array. After the loop it is still there unless the loop runs again.
    """
    body = site.loop.body
    jumps = (ast.Break, ast.Continue, ast.Return)
    if site.block is not body or any(isinstance(n, jumps) for n in ast.walk(site.loop)):
        return False
    if names & after[id(site.loop)] and not site.is_outermost:
        return False
    read = live(body, set())
    return not flow.passed_on(body, names & read) & read


def _give_back(tree: ast.FunctionDef, call: str, facts: Facts, fresh: Callable[[str], str]) -> None:
    """Let a function make a call when its results are computed, or before it raises an error."""
    if not isinstance(tree.body[-1], ast.Return):
        tree.body.append(ast.Return(None))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for block in [block for node in statements for block in blocks_of(node)]:
        for end in [node for node in block if isinstance(node, (ast.Raise, ast.Return))]:
            before = [_statement(call)]
            if isinstance(end, ast.Return):
                value = end.value
                if value is not None and not all(map(_is_plain, leaves(value))):
                    result = fresh("results")
                    before.insert(0, _statement(f"{result} = {ast.unparse(value)}"))
                    end.value = ast.Name(result, ast.Load())
            elif any(is_array(facts.kind(n.id)) for n in ast.walk(end) if isinstance(n, ast.Name)):
                continue  # the message is computed from it
            place = next(k for k, node in enumerate(block) if node is end)
            block[place:place] = before


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression computes nothing."""
    return isinstance(node, (ast.Name, ast.Constant))


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _sites(body: list[ast.stmt], loops: list[Any], facts: Facts) -> Iterator[_Site]:
    """Yield the statements in loops that make arrays of floats."""
    for node in body:
        inner = [*loops, node] if isinstance(node, (ast.For, ast.While)) else loops
        if isinstance(node, ast.For) and ast.unparse(node.iter).startswith(f"{PARALLEL}("):
            continue  # threads would share the array
        for block in blocks_of(node):
            yield from _sites(block, inner, facts)
        if not loops or not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        kind = facts.kind(target.id) if isinstance(target, ast.Name) else None
        if not _is_plain_array(kind) or isinstance(value, ast.Name):
            continue
        made = _made(ast.unparse(target), value, kind.ndim, facts)
        if made is not None:
            yield _Site(body, node, loops[-1], len(loops) == 1, *made)


def _is_plain_array(kind: Any, layouts: str = "C") -> bool:
    """Whether a type is that of contiguous arrays of floats."""
    return is_array(kind) and kind.dtype == types.float64 and kind.layout in layouts


def _made(
    array: str, value: ast.expr, ndim: int, facts: Facts
) -> tuple[ast.expr, list[str]] | None:
    """Return the shape of a new array, and what sets its elements; None for other values."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        return _product(array, value, facts)
    if not isinstance(value, ast.Call):
        return None
    maker = ast.unparse(value.func)
    given = value.args[0] if value.args else None
    if isinstance(value.func, ast.Attribute) and value.func.attr == "copy" and given is None:
        maker, given = "np.copy", value.func.value
        value = ast.Call(value.func, [given], value.keywords)
    if maker not in _MAKERS:
        return None
    shape = _shape(value, maker, ndim, facts)
    return None if shape is None else (shape, list(_elements(array, value, maker)))


def _product(array: str, value: ast.BinOp, facts: Facts) -> tuple[ast.expr, list[str]] | None:
    """Return the shape of a product of matrices or vectors, and what computes it."""
    factors = [value.left, value.right]
    kinds = [facts.kind(n.id) if isinstance(n, ast.Name) else None for n in factors]
    if not all(_is_plain_array(kind, "CF") for kind in kinds):
        return None
    left, right = map(ast.unparse, factors)
    extents = [f"{left}.shape[0]"] * (kinds[0].ndim > 1) + [f"{right}.shape[1]"] * (
        kinds[1].ndim > 1
    )
    if not extents:
        return None
    shape = ast.parse(f"({', '.join(extents)},)", mode="eval").body
    return shape, [f"np.dot({left}, {right}, {array})"]


def _elements(array: str, call: ast.Call, maker: str) -> Iterator[str]:
    """Yield the statements that set the elements of a new array."""
    if maker == "np.array":
        for place, item in _items(call.args[0]):
            yield f"{array}[{', '.join(map(str, place))}] = {ast.unparse(item)}"
    elif maker == "np.copy":
        yield f"runtime.assign({array}, {ast.unparse(call.args[0])})"
    elif maker.startswith("np.zeros"):
        yield f"runtime.clear({array})"


def _items(node: ast.expr) -> Iterator[tuple[tuple[int, ...], ast.expr]]:
    """Yield the items of nested lists, with their positions."""
    if isinstance(node, ast.List):
        for k, part in enumerate(node.elts):
            yield from (((k, *place), item) for place, item in _items(part))
    else:
        yield (), node


def _shape(call: ast.Call, maker: str, ndim: int, facts: Facts) -> ast.expr | None:
    """Return the shape of the array that a call makes, None if it is no array of floats."""
    if len(call.args) != 1 or call.keywords:
        return None
    (given,) = call.args
    if maker == "np.array":
        items = list(_items(given))
        if not items or any(not _is_number(item, facts) for _, item in items):
            return None
        extents: list[ast.expr] = [ast.Constant(1 + k) for k in items[-1][0]]
        return ast.Tuple(extents, ast.Load())
    if maker.endswith("_like") or maker == "np.copy":
        kind = facts.kind(given.id) if isinstance(given, ast.Name) else None
        if not _is_plain_array(kind):
            return None
        return ast.Attribute(given, "shape", ast.Load())
    if isinstance(given, ast.Tuple):
        return given if all(_is_extent(item, facts) for item in given.elts) else None
    if isinstance(given, ast.Name) and isinstance(facts.kind(given.id), types.UniTuple):
        return given if facts.kind(given.id).dtype == types.int64 else None
    if ndim == 1 and _is_extent(given, facts):
        return ast.Tuple([given], ast.Load())
    return None


def _is_number(node: ast.expr, facts: Facts) -> bool:
    """Whether an expression is a number, and computes nothing."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return isinstance(node, ast.Name) and isinstance(facts.kind(node.id), types.Number)


def _is_extent(node: ast.expr, facts: Facts) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "size"
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name) and facts.kind(node.id) == types.int64
