"""Arrays that a loop makes in each iteration, and does not need after it, are made once.

Allocating a small array takes longer than clearing one, and so does counting references to it. The
memory of the iteration before serves again, and that of other arrays which are not needed at the
same time. For example, ``k = np.zeros(n)`` becomes::

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tapegrad.transform.facts import UNFILLED
from tapegrad.transform.frontend.liveness import assigned, live, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array, made
from tapegrad.transform.printer import is_parallel
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.syntax import (
    blocks_of,
    callee_of,
    is_loop,
    leaves,
    may_leave,
    nodes_in,
    text_of,
)
from tapegrad.transform.trees import Part, quoted, quoted_block


@dataclass
class _Site:
    """A statement in a loop that makes an array."""

    block: list[ast.stmt]
    statement: ast.Assign
    loop: ast.For | ast.While
    is_outermost: bool
    shape: ast.expr
    elements: list[ast.stmt]
    """Statements that set the elements."""

    @property
    def name(self) -> str:
        """The name of the array."""
        return text_of(self.statement.targets[0])


def reuse_arrays(function: Function) -> bool:
    """Let loops of a function reuse the arrays that they make; return whether there are any."""
    tree, facts, fresh = function.tree, function.facts, function.fresh
    flow = function.analyses.flow
    sites = list(_sites(tree.body, [], facts))
    if not sites:
        return False
    for site in reversed(sites):
        _make_late(site)
    function.drop_analyses()  # statements have other places; where arrays go is the same
    after = function.analyses.live_after
    places, taken = fresh("places"), _Places()
    for site in sites:
        names = flow.reached([site.name])
        elsewhere = live(site.loop.body, set()) | after[id(site.loop)]
        is_carried = bool(names & elsewhere)
        if names & flow.held or (is_carried and not _is_carried_once(site, names, flow, after)):
            continue
        needed = after[id(site.statement)] | used(site.statement)
        number = taken.two() if is_carried else taken.one(_Array(names, needed))
        names_of_parts: dict[str, Part] = {"places": places, "k": number, "after": number + 1}
        scratch = quoted("runtime.scratch(places, k, shape)", shape=site.shape, **names_of_parts)
        site.statement.value = scratch
        at = next(k for k, node in enumerate(site.block) if node is site.statement)
        site.block[at + 1 : at + 1] = site.elements
        if is_carried:
            swap = quoted_block("runtime.swap_scratch(places, k, after)", **names_of_parts)
            site.block[at:at] = swap
    if taken.count:
        give = quoted("runtime.give_scratch(places, n)", places=places, n=taken.count)
        _give_back(tree, give, facts, fresh)
        take = quoted_block("places = runtime.take_scratch(n)", places=places, n=taken.count)
        tree.body[:0] = take
    return taken.count > 0


@dataclass
class _Array:
    """An array: the names that may refer to it, and those that are needed when it is made."""

    names: set[str]
    needed: set[str]

    def meets(self, other: _Array) -> bool:
        """Whether one of two arrays is needed when the other one is made."""
        return bool(self.names & other.needed or other.names & self.needed)


class _Places:
    """The places of arrays.

    Attributes
    ----------
    count
        How many there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._arrays: dict[int, list[_Array]] = {}  # that share a place

    def one(self, array: _Array) -> int:
        """Return a place for an array, which others have when it is not needed."""
        for number, others in self._arrays.items():
            if not any(map(array.meets, others)):
                others.append(array)
                return number
        self._arrays[self.count] = [array]
        self.count += 1
        return self.count - 1

    def two(self) -> int:
        """Return the first of two places that no other array has."""
        self.count += 2
        return self.count - 2


def _make_late(site: _Site) -> None:
    """Move a statement that makes an array to its first use: others may have its place before."""
    maker, block = site.statement, site.block
    if callee_of(maker.value) not in UNFILLED:
        return
    start = end = next(k for k, node in enumerate(block) if node is maker)
    shape = used(maker.value)
    for node in block[start + 1 :]:
        names = set(names_in(node))
        if site.name in names or shape & {*assigned([node])} or may_leave(node):
            break
        end += 1
    if end + 1 < len(block):  # it is used at all
        block.insert(end, block.pop(start))


def _is_carried_once(site: _Site, names: set[str], flow: Flow, after: dict[int, set[str]]) -> bool:
    """Whether the iteration after next needs nothing of an array.

    `names` may refer to the array. After the loop it is still there unless the loop runs again.
    """
    body = site.loop.body
    if site.block is not body or may_leave(site.loop):
        return False
    if names & after[id(site.loop)] and not site.is_outermost:
        return False
    read = live(body, set())
    return not flow.passed_on(body, names & read) & read


def _give_back(
    tree: ast.FunctionDef, call: ast.expr, facts: Facts, fresh: Callable[[str], str]
) -> None:
    """Let a function make a call when its results are computed, or before it raises an error."""
    if not isinstance(tree.body[-1], ast.Return):
        tree.body.append(ast.Return(None))
    for block in [block for node in list(nodes_in(tree, ast.stmt)) for block in blocks_of(node)]:
        for end in [node for node in block if isinstance(node, (ast.Raise, ast.Return))]:
            before = quoted_block("call", call=call)
            match end:
                case ast.Return(value):
                    if value is not None and not all(map(_is_plain, leaves(value))):
                        result = fresh("results")
                        before[:0] = quoted_block("x = value", x=result, value=value)
                        end.value = ast.Name(result, ast.Load())
                case _ if any(is_array(facts.kind(name)) for name in names_in(end)):
                    continue  # the message is computed from it
            place = next(k for k, node in enumerate(block) if node is end)
            block[place:place] = before


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression computes nothing."""
    return isinstance(node, (ast.Name, ast.Constant))


def _sites(body: list[ast.stmt], loops: list[Any], facts: Facts) -> Iterator[_Site]:
    """Yield the statements in loops that make arrays of floats."""
    for node in body:
        inner = [*loops, node] if is_loop(node) else loops
        if is_parallel(node):
            continue  # threads would share the array
        for block in blocks_of(node):
            yield from _sites(block, inner, facts)
        match node:
            case ast.Assign([ast.Name(id=name), *_], value) if loops:
                kind = facts.kind(name)
                found = made(name, value, kind.ndim, facts) if is_plain_array(kind) else None
                if found is not None:
                    yield _Site(body, node, loops[-1], len(loops) == 1, *found)
