"""Lists of floats: an array with spare capacity, and the number of items in it.

A list has no derivative, an array has. If numba infers a list of floats, a second normal form is
made with the items in an array, and operations on the list become operations on the array:
``append`` stores an element, in a larger array if the capacity is used up. Lists of anything else
stay lists.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tapegrad.transform.frontend.atoms import Env, same
from tapegrad.transform.frontend.body import Body
from tapegrad.transform.frontend.inner_functions import Definition, call_of
from tapegrad.transform.frontend.items import Appends, Items, array_of, length_of, touched
from tapegrad.transform.ir import Store, constant
from tapegrad.transform.nodes import is_number
from tapegrad.transform.syntax import subtree

_TEMPLATES = """
def position(i, n):
    if i < 0:
        i = i + n
    if i < 0 or i >= n:
        raise IndexError("getitem out of range")
    return i

def total(items):
    s = 0.0
    for v in items:
        s = s + v
    return s

def smallest(items):
    found = items[0]
    for k in range(1, len(items)):
        v = items[k]
        if v < found:
            found = v
    return found

def largest(items):
    found = items[0]
    for k in range(1, len(items)):
        v = items[k]
        if v > found:
            found = v
    return found

def extend(items, others):
    for v in others:
        items.append(v)

def copied(items):
    found = []
    for v in items:
        found.append(v)
    return found
"""


def _definitions() -> dict[str, Definition]:
    found = {}
    for node in ast.parse(_TEMPLATES).body:
        assert isinstance(node, ast.FunctionDef)
        for part in subtree(node):
            if hasattr(part, "lineno"):
                del part.lineno  # replaced by the line of the user's call
        found[node.name] = Definition(
            node.name, [a.arg for a in node.args.args], {}, node.body, node
        )
    return found


TEMPLATES = _definitions()
_WHOLE_LIST = {builtins.sum: "total", builtins.min: "smallest", builtins.max: "largest"}


class Code(Protocol):
    """Appends the code of expressions, and of branches (see `Expressions`)."""

    body: Body

    def expression(self, node: ast.expr, env: Env, stem: str = "t") -> ast.expr:
        """Append the code of an expression; return its atom."""

    def choose(
        self,
        cond: ast.expr,
        then: Callable[[Env], None],
        orelse: Callable[[Env], None],
        env: Env,
        after: set[str] | None,
        line: int,
    ) -> None:
        """Append a branch, and merge the environments of its blocks."""


class Lists:
    """Operations on lists.

    Parameters
    ----------
    expressions
        Appends the code of expressions.
    floats
        In the second normal form, the types of the items of lists of floats, by the numbers of the
        places that make them.

    Attributes
    ----------
    sites
        The names of all lists, in the order of the places that make them.
    depth
        The number of loops around the current block.
    roomy
        Lists with capacity for all that the current loop appends.
    """

    def __init__(self, expressions: Code, floats: dict[int, Any]) -> None:
        self.expressions, self.body = expressions, expressions.body
        self.floats = dict(floats)
        self.sites: list[str] = []
        self.parts = 0  # slices and copies of lists have negative numbers
        self.depths: dict[int, int] = {}  # loop depths at which lists were made
        self.depth = 0
        self.roomy: set[int] = set()

    # -- new lists ----------------------------------------------------------------------------

    def made(self, expr: ast.expr, stem: str, env: Env) -> ast.expr:
        """Return the new list that an expression makes."""
        site = len(self.sites)
        if site not in self.floats:
            self.sites.append("")
            found = self.body.let(expr, stem)
            self.sites[site] = found.id
            return found
        self.sites.append("")
        match expr:
            case ast.List([]):
                array = self.new_array(site, constant(0), stem)
                return self.entered(site, array, constant(0), env)
            case ast.List(given):
                make = self.body.outside("np.array", np.array)
                array = self.body.let(ast.Call(make, [expr, self.dtype(site)], []), stem)
                return self.entered(site, array, constant(len(given)), env)
            case ast.BinOp(ast.List([item]), _, count) | ast.BinOp(count, _, ast.List([item])):
                most = ast.Call(self.body.builtin("max"), [count, constant(0)], [])
                length = self.body.let(most, "length")
                array = self.new_array(site, length, stem)
                whole = ast.Slice(None, None, None)
                self.body.block.append(Store(array.id, whole, item, "", self.body.line))
                return self.entered(site, array, length, env)
        raise AssertionError(ast.dump(expr))

    def entered(self, site: int, array: ast.expr, length: ast.expr, env: Env) -> Items:
        """Return a new list with the given array and length."""
        items = Items()
        items.site = site
        for identifier, value in env.items():
            if isinstance(value, Items) and value.site == site:
                raise self.body.refuse(
                    f"cannot differentiate the list {identifier!r}, which stays in use while the "
                    "same place makes another one; use arrays",
                    self.body.line,
                )
        env[array_of(items)] = array
        env[length_of(items)] = length
        self.depths[site] = self.depth
        return items

    def dtype(self, site: int) -> ast.Name:
        """Return the type of the items of a list."""
        kind = str(self.floats[site])
        return self.body.outside(f"np.{kind}", getattr(np, kind))

    def new_array(self, site: int, size: ast.expr, stem: str) -> ast.Name:
        empty = self.body.outside("np.empty", np.empty)
        return self.body.let(ast.Call(empty, [size, self.dtype(site)], []), stem)

    # -- operations on lists ------------------------------------------------------------------

    def template(self, text: str, arguments: list[ast.expr], env: Env, stem: str = "t") -> ast.expr:
        """Append the code of a template for some arguments."""
        given = {f"argument {k}": value for k, value in enumerate(arguments)}
        names: list[ast.expr] = [ast.Name(identifier, ast.Load()) for identifier in given]
        env.update(given)
        found = self.expressions.expression(
            call_of(TEMPLATES[text], names, [], ast.Pass()), env, stem
        )
        for identifier in given:
            env.pop(identifier, None)
        return found

    def content(self, items: Items, env: Env) -> ast.expr:
        """Return the items as a view of the array."""
        array, length = env[array_of(items)], env[length_of(items)]
        return self.body.let(ast.Subscript(array, ast.Slice(None, length, None), ast.Load()), "t")

    def array_copy(self, items: Items, env: Env, stem: str) -> ast.expr:
        """Return a new array of the items."""
        method = ast.Attribute(self.content(items, env), "copy", ast.Load())
        return self.body.let(ast.Call(method, [], []), stem)

    def position(self, items: Items, index: ast.expr, env: Env) -> ast.expr:
        """Return the position of an item in the array."""
        length = env[length_of(items)]
        if isinstance(index, ast.Constant) and isinstance(length, ast.Constant):
            place: Any = index.value
            count: Any = length.value
            place = place + count if place < 0 else place
            if 0 <= place < count:
                return constant(place)
        return self.template("position", [index, length], env, "place")

    def subscript(self, base: Items, index: ast.expr, env: Env, stem: str) -> ast.expr:
        """Return an item, or a new list of the items in a slice."""
        if not isinstance(index, ast.Slice):
            place = self.position(base, index, env)
            return self.body.let(ast.Subscript(env[array_of(base)], place, ast.Load()), stem)
        shown = self.body.let(ast.Subscript(self.content(base, env), index, ast.Load()), stem)
        return self.part(base, shown, env, stem)

    def part(self, items: Items, shown: ast.expr, env: Env, stem: str) -> Items:
        """Return a new list of the items in a view of an array."""
        self.parts += 1
        site = -self.parts
        self.floats[site] = self.floats[items.site]
        array = self.body.let(ast.Call(ast.Attribute(shown, "copy", ast.Load()), [], []), stem)
        length = self.body.let(ast.Call(self.body.builtin("len"), [array], []), "length")
        return self.entered(site, array, length, env)

    def called(self, call: ast.Call, value: Any, env: Env, stem: str) -> ast.expr | None:
        """Append a call of a function with a list; return None for other calls."""
        arguments = call.args
        if value is list and len(arguments) == 1 and not call.keywords:
            return self.template("copied", arguments, env, stem)
        if not arguments or not isinstance(arguments[0], Items):
            return None
        items = arguments[0]
        if value is len:
            return env[length_of(items)]
        if value in (np.array, np.asarray):
            array = self.array_copy(items, env, stem)
            kinds = [*arguments[1:], *(word.value for word in call.keywords)]
            if not kinds:
                return array
            method = ast.Attribute(array, "astype", ast.Load())
            return self.body.let(ast.Call(method, kinds, []), stem)
        if value in _WHOLE_LIST and len(arguments) == 1:
            return self.template(_WHOLE_LIST[value], arguments, env, stem)
        return None

    def method(self, base: Items, node: ast.Call, env: Env, stem: str) -> ast.expr:
        """Append the call of a method of a list."""
        assert isinstance(node.func, ast.Attribute)
        text = node.func.attr
        arguments = [self.expressions.expression(argument, env) for argument in node.args]
        if text == "append" and len(arguments) == 1:
            self.append(base, arguments[0], env)
            return constant(None)
        if text == "extend" and len(arguments) == 1:
            self.extend(base, arguments[0], env)
            return constant(None)
        if text == "pop" and not arguments:
            place = self.position(base, constant(-1), env)
            found = self.body.let(ast.Subscript(env[array_of(base)], place, ast.Load()), stem)
            env[length_of(base)] = place
            return found
        if text == "clear" and not arguments:
            env[length_of(base)] = constant(0)
            return constant(None)
        if text == "copy" and not arguments:
            return self.part(base, self.content(base, env), env, stem)
        raise self.body.refuse(
            f"cannot differentiate the method {text!r} of a list of floats; make it an array "
            "first: np.array(items)",
            node,
        )

    def extend(self, items: Items, others: ast.expr, env: Env) -> None:
        if isinstance(others, Items) and others.site == items.site:
            raise self.body.refuse(
                "cannot differentiate a list that is extended by itself; use an array",
                self.body.line,
            )
        self.template("extend", [items, others], env)

    def append(self, items: Items, value: ast.expr, env: Env) -> None:
        self.body.check_use(value)
        length = env[length_of(items)]
        if items.site not in self.roomy:
            self.make_room(items, constant(1), env)
        array = env[array_of(items)]
        assert isinstance(array, ast.Name)
        self.body.block.append(Store(array.id, length, value, "", self.body.line))
        env[length_of(items)] = self.body.let(ast.BinOp(length, ast.Add(), constant(1)), "length")

    def make_room(self, items: Items, count: ast.expr, env: Env) -> None:
        """Append code that makes the array of a list large enough for `count` more items."""
        length, old = env[length_of(items)], env[array_of(items)]
        needed = self.body.let(ast.BinOp(length, ast.Add(), count), "size")

        def enlarge(inner: Env) -> None:
            size: ast.expr = needed
            if self.depths[items.site] != self.depth:
                twice = self.body.let(ast.BinOp(constant(2), ast.Mult(), needed), "size")
                size = twice
            array = self.new_array(items.site, size, "items")
            if not is_number(length, 0):
                part = ast.Slice(None, length, None)
                content = self.body.let(ast.Subscript(old, part, ast.Load()), "t")
                self.body.block.append(Store(array.id, part, content, "", self.body.line))
            inner[array_of(items)] = array

        if self.depths[items.site] == self.depth:
            enlarge(env)
            return
        size = self.body.let(ast.Attribute(old, "size", ast.Load()), "size")
        full = self.body.let(ast.Compare(needed, [ast.Gt()], [size]), "cond")
        self.expressions.choose(full, enlarge, lambda _: None, env, None, self.body.line)

    def store(self, base: ast.expr, index: ast.expr, value: Any, op: str, env: Env) -> None:
        """Append a store to an element or slice."""
        if isinstance(value, list):
            value = self.body.let(ast.Tuple(value, ast.Load()), "t")
        if isinstance(value, Items):
            value = self.content(value, env)
        if isinstance(base, Items):
            if isinstance(index, ast.Slice):
                raise self.body.refuse(
                    "cannot differentiate the store to a slice of a list of floats; use an array",
                    self.body.line,
                )
            index = self.position(base, index, env)
            base = env[array_of(base)]
        assert isinstance(base, ast.Name)
        self.body.block.append(Store(base.id, index, value, op, self.body.line))

    def array(self, items: Items, env: Env) -> ast.expr:
        """Return the array of a list, including its spare capacity."""
        return env[array_of(items)]

    def item(self, value: ast.expr, index: ast.expr, env: Env, stem: str) -> ast.expr:
        """Return an item of a tuple, array or list that is unpacked."""
        if isinstance(value, Items):
            index = self.position(value, index, env)
            value = self.array(value, env)
        return self.body.let(ast.Subscript(value, index, ast.Load()), stem)

    # -- loops ----------------------------------------------------------------------------------

    def grown(self, nodes: list[ast.stmt], env: Env) -> list[str]:
        """Return the variables of lists whose length statements may change."""
        found: dict[str, None] = {}
        for identifier in touched(nodes):
            found.update(dict.fromkeys(sorted(self.behind(env, {identifier}))))
        return list(found)

    def reserve(self, node: ast.For, bounds: tuple[ast.expr, ...], env: Env) -> set[int]:
        """Reserve capacity for all that a loop appends, if the number is known before the loop.

        Returns the lists with reserved capacity.
        """
        names = [v for v in touched(node.body) if isinstance(env.get(v), Items)]
        made = Appends(self, node, env)
        totals: dict[int, tuple[Items, list[ast.expr]]] = {}
        for identifier in names:
            items = env[identifier]
            assert isinstance(items, Items)
            if items.site not in self.roomy:
                count = made.count(node.body, identifier)
                _, counts = totals.setdefault(items.site, (items, []))
                counts.append(ast.Constant(None) if count is None else count)
        found: set[int] = set()
        for site, (items, counts) in totals.items():
            if made.is_unclear or any(isinstance(c, ast.Constant) and not c.value for c in counts):
                continue
            total = self.expressions.expression(counts[0], env)
            for count in counts[1:]:  # other names of the list
                more = self.expressions.expression(count, env)
                total = self.body.let(ast.BinOp(total, ast.Add(), more), "size")
            needed = self.trips(bounds)
            if not is_number(total, 1):
                needed = self.body.let(ast.BinOp(needed, ast.Mult(), total), "size")
            self.make_room(items, needed, env)
            found.add(site)
        return found

    def trips(self, bounds: tuple[ast.expr, ...]) -> ast.expr:
        """Return the trip count of a loop over a range."""
        low, high, step = bounds
        if same(low, constant(0)) and same(step, constant(1)):
            return self.body.let(
                ast.Call(self.body.builtin("max"), [high, constant(0)], []), "size"
            )
        turns = self.body.let(ast.Call(self.body.builtin("range"), [low, high, step], []), "turns")
        return self.body.let(ast.Call(self.body.builtin("len"), [turns], []), "size")

    # -- where paths meet ---------------------------------------------------------------------

    def behind(self, env: Env, names: set[str]) -> set[str]:
        return {
            hidden
            for identifier, value in env.items()
            if isinstance(value, Items) and identifier in names
            for hidden in (array_of(value), length_of(value))
        }

    def align(self, then: Env, orelse: Env, after: set[str] | None, line: int) -> None:
        for identifier in dict.fromkeys([*then, *orelse]):
            one, two = then.get(identifier), orelse.get(identifier)
            if not isinstance(one, Items) and not isinstance(two, Items):
                continue
            if same(one, two) or (after is not None and identifier not in after):
                continue
            if one is None or two is None:
                # defined on one path only, and used only if that path was taken
                found = one or two
                assert found is not None
                then[identifier] = orelse[identifier] = found
            elif isinstance(one, Items) and isinstance(two, Items) and self.is_one(then, one, two):
                if not self.is_one(orelse, two, one):
                    raise self.refuse_choice(identifier, line)
                self.parts += 1
                items = Items()
                items.site = -self.parts
                self.floats[items.site] = self.floats[one.site]
                self.depths[items.site] = self.depth
                for env, old in ((then, one), (orelse, two)):
                    env[identifier] = items
                    env[array_of(items)] = env.pop(array_of(old))
                    env[length_of(items)] = env.pop(length_of(old))
            else:
                raise self.refuse_choice(identifier, line)

    def is_one(self, env: Env, own: Items, other: Items) -> bool:
        """Whether a list has exactly one name, and the list of the other branch has none."""
        sites = [value.site for value in env.values() if isinstance(value, Items)]
        return sites.count(own.site) == 1 and other.site not in sites

    def refuse_choice(self, identifier: str, line: int) -> Exception:
        what = f"{identifier!r}, which" if " " not in identifier else "an expression that"
        return self.body.refuse(
            f"cannot differentiate {what} is one list or another by the branch taken; make it an "
            "array in both: np.array(items)",
            line,
        )
