"""The code of forward mode computes the tangents that follow from the function in it.

Some paths through the code are drawn at random (`walk`). On each, the tangents are computed twice:
by the statements for tangents, and from the operations of the function, in order (`events`).
Derivatives are random maps (`linear`), the same in both. A contribution that is missing, repeated
or out of order changes the tangents of the result or of the final contents of arguments.

A tangent has to belong to the current value of its name, and has to be computed from the values
that the operation read; each array has exactly one array of tangents, which it does not share.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.code import (
    Code,
    names_in,
    paired,
)
from tapegrad.transform.verifier.cotangents import TANGENT
from tapegrad.transform.verifier.events import (
    Handle,
    Memory,
    Number,
    Value,
)
from tapegrad.transform.verifier.forward_names import Facts, TangentCode, find_arrays
from tapegrad.transform.verifier.frames import Choices, go_ways
from tapegrad.transform.verifier.linear import ONE, ZERO, Map
from tapegrad.transform.verifier.memory import results_of
from tapegrad.transform.verifier.pushforward import check_pushforward
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.summary import Summary
from tapegrad.transform.verifier.tangent_calls import TangentCalls
from tapegrad.transform.verifier.tangent_reading import same

_ZEROS = ("zeros", "zeros_like")


class Tangents(TangentCalls):
    """The comparison on one path."""

    # -- the whole function -------------------------------------------------------------------

    def run(self) -> None:
        """Compare the tangents of the result, and the final ones of arguments."""
        names = self.frame.names
        for param in self.checked.own:
            names[param] = self.value_of(param)
        for name in self.facts.outside:
            names[name] = Handle(Memory())
        for part in self.checked.parts:
            if part in names:
                self.give(part, names[part])
        self.block(self.code.body)
        self.finish()

    def value_of(self, name: str) -> Value:
        return Handle(Memory()) if name in self.arrays else Number(self.fresh())

    def give(self, name: str, value: Value) -> None:
        """Register a part of the arguments that has a tangent."""
        seed = self.maps.of("seed", name)
        dot = name + self.suffix
        self.expected.add(value, seed)
        if isinstance(value, Handle):
            handle = self.frame.names[dot] = Handle(Memory())
            self.contents.add(handle, seed)
            self.pair(value, handle, dot, self.code.body[0])
        else:
            self.set_number(dot, seed, value)

    def finish(self) -> None:
        end = self.code.body[-1]
        self.check_stores(end)
        result, dots = self.checked.results()
        rest = iter(results_of(result))
        found: list[tuple[str, Map]] = []
        for dot in dots:
            if isinstance(dot, ast.Name) and dot.id in self.bars:
                given = self.sources(dot)[0][2]
                assert not isinstance(given, Helper)
                found += [*self.skipped(self.stem(dot.id), rest, end), (self.stem(dot.id), given)]
            elif self.is_zero(dot):
                zero = [n.id for n in names_in(dot) if n.id in self.facts.primal]
                found += self.skipped(zero[0] if zero else "", rest, end)
            else:
                raise self.wrong("it returns what is no tangent", end)
        found += [(leaf.id, ZERO) for leaf in rest if isinstance(leaf, ast.Name)]
        self.expected.run(self.events)
        for stem, given in found:
            if self.expected.get(self.frame.get(stem)) != given:
                raise self.wrong(f"the tangent of {stem} is not what follows from the code", end)
        self.check_all(end)

    def check_all(self, end: ast.stmt) -> None:
        """Compare all tangents that are read, including those reached only through the tape."""
        wrong = [n for n, v, given in self.given if self.expected.numbers.get(v, ZERO) != given]
        for array, shadow in self.shadows.items():
            left = self.expected.contents.known.get(array, ZERO)
            if left != self.contents.known.get(shadow, ZERO):
                wrong.append(self.names[array])
        for name in wrong:
            if name + self.suffix in self.checked.reads:
                raise self.wrong(f"the tangent of {name} is not what follows from the code", end)

    def skipped(self, stem: str, rest: Iterator[ast.expr], end: ast.stmt) -> list[tuple[str, Map]]:
        """Return the parts of the result before one with a tangent; their tangents are zero.

        Without a name, return the next part.
        """
        found: list[tuple[str, Map]] = []
        for leaf in rest:
            name = leaf.id if isinstance(leaf, ast.Name) else ""
            if name == stem and name:
                return found
            if name:
                found.append((name, ZERO))
            if not stem:
                return found
        raise self.wrong(f"the tangent of {stem} has no place in the result", end)

    def value(self, target: str, node: ast.expr, statement: ast.stmt) -> Value:
        if target in self.checked.parts and target not in self.checked.own:
            made = self.value_of(target)
            self.give(target, made)
            return made
        if target in self.arrays and self.is_copy_of_passive(node):
            return self.made(target, self.event(operands={}))
        return super().value(target, node, statement)

    def is_copy_of_passive(self, node: ast.expr) -> bool:
        """Whether elements of an array without tangents are gathered at an array of positions."""
        return (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id + self.suffix not in self.bars
            and any(part.id in self.code.arrays for part in names_in(node.slice))
        )

    # -- statements for tangents --------------------------------------------------------------

    def cotangent(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self.assign_tangents(node)
        elif isinstance(node, ast.AugAssign):
            sign = -1 if isinstance(node.op, ast.Sub) else 1
            if not isinstance(node.op, (ast.Add, ast.Sub)):
                raise self.wrong("a tangent is changed by something else than a sum", node)
            if isinstance(node.target, ast.Name):
                self.add_whole(node, node.target, node.value, sign)
            else:
                self.store_tangent(node, node.target, node.value, sign)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.call_for_effect(node, node.value)
        else:
            raise self.wrong("a statement that no pass knows", node)

    def assign_tangents(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        pairs = paired(target, value)
        if isinstance(value, ast.Call) and isinstance(target, ast.Tuple):
            is_both = not self.makes_tangents(target.elts[0])
            (self.call if is_both else self.several)(node, target, value)
            return
        if isinstance(target, ast.Subscript):
            self.store_tangent(node, target, value, 1)
            return
        if isinstance(target, ast.Name) and target.id in self.tops:
            assert isinstance(value, ast.Call)
            self.check_top(node, target.id, value)
            return
        self.now = {
            t.id: self.value(t.id, v, node)
            for t, v in pairs
            if isinstance(t, ast.Name) and t.id not in self.bars
        }
        made: list[tuple[str, Map | Handle | Helper]] = []
        for one, expr in pairs:
            if not isinstance(one, ast.Name):
                raise self.wrong("a store that no pass knows", node)
            if one.id in self.bars and not self.stem(one.id):
                self.helpers[one.id] = self.sources(expr)
            elif one.id in self.bars:
                made.append((one.id, self.tangent(one.id, expr, node)))
        for name, new in self.now.items():
            self.set_value(name, new)
        for name, found in made:
            stem = self.stem(name)
            if isinstance(found, Handle):
                self.set_value(name, found)
                owner = self.now.get(stem) or self.frame.get(stem)
                assert isinstance(owner, Handle)
                self.pair(owner, found, name, node)
            else:
                self.set_number(name, found, self.frame.get(stem))
        self.now = {}

    def tangent(self, name: str, expr: ast.expr, node: ast.stmt) -> Map | Handle | Helper:
        """Return the tangent that an expression assigns to a name."""
        stem = self.stem(name)
        value = self.current(stem)
        if name in self.parts and text_of(expr) == "1.0":
            return ONE  # the slope of what a recurrence starts from
        if not isinstance(value, Handle):
            return self.gain(expr, stem, node)
        shown = self.handle(expr)
        if shown is not None:
            self.sources(expr)
            return shown
        if isinstance(expr, ast.Call) and self.is_zero(expr):
            if value.memory not in self.shadows and self.is_of_passive(value, expr):
                self.constant.add(value.memory)
            return Handle(Memory())
        made = Handle(Memory())
        self.contents.add(made, self.gain(expr, stem, node))
        return made

    def is_of_passive(self, value: Handle, zero: ast.expr) -> bool:
        """Whether zeros are assigned as the tangent of an array without tangents, or of a view."""
        passive = [n.id for n in names_in(zero) if n.id + self.suffix not in self.bars]
        return bool(value.steps) or any(same(value, self.frame.get(name)) for name in passive)


def verify_tangents(codes: list[Code], summaries: dict[str, Summary]) -> None:
    """Check the functions of forward mode.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    others = {
        c.name: TangentCode(c, summaries) for c in codes if c.primal and TANGENT.search(c.name)
    }
    find_arrays(others)
    for checked in others.values():
        checked.static = Facts(checked, set())

        def follow(choices: Choices, one: TangentCode = checked) -> None:
            Tangents(one, choices, others).run()

        go_ways(checked.codes, follow)
    for code in codes:
        if code.name not in others:
            check_pushforward(code, others)
