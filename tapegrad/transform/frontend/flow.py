"""Control flow: branches, loops and inlined functions, and the values they merge."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from tapegrad.transform.checkpointing import checkpointed
from tapegrad.transform.frontend.atoms import Env, same
from tapegrad.transform.frontend.conditions import Uncertain
from tapegrad.transform.frontend.expressions import Expressions
from tapegrad.transform.frontend.inner_functions import Inlined, rename
from tapegrad.transform.frontend.items import Items, array_of, length_of
from tapegrad.transform.frontend.jumps import Structurer
from tapegrad.transform.frontend.liveness import assigned, live, used
from tapegrad.transform.ir import Block, Carried, Loop, constant, name, reads, walk
from tapegrad.transform.syntax import name_of, subtree

NO_SEQUENCE = (
    "cannot differentiate a loop over a dict, a set or an iterator; loop over an array or a tuple "
    "of the keys"
)
_OF_DICTS = ("items", "keys", "values")


def stem_of(target: ast.expr, other: str) -> str:
    """Return the stem for the name of a value that is assigned: that of the variable, if any."""
    return name_of(target) or other


class Flow:
    """Appends branches and loops.

    Parameters
    ----------
    expressions
        Appends the code of expressions.
    statements
        Appends the normal form of statements; its last argument names the variables read later.
    assign
        Appends an assignment.
    """

    def __init__(
        self,
        expressions: Expressions,
        statements: Callable[[list[ast.stmt], Env, set[str]], None],
        assign: Callable[[ast.expr, Any, Env], None],
    ) -> None:
        self.expressions, self.body, self.lists = expressions, expressions.body, expressions.lists
        self.statements, self.assign = statements, assign

    def structured(self, body: list[ast.stmt]) -> tuple[list[ast.stmt], str | None]:
        """Return the body of a function without jumps, and the name of its result."""
        self.body.local |= set(assigned(body))
        structurer = Structurer(self.body.fresh, self.body.has_effects, self.body.departures)
        statements, result = structurer.function(body)
        if structurer.returned is not None:
            self.body.departures.unread[structurer.returned] = set(assigned(body))
        for statement in statements:
            self.body.local |= set(assigned([statement]))
        return statements, result

    def inlined(self, node: Inlined, env: Env, stem: str) -> ast.expr:
        """Append the body of an inner function in place of its call."""
        definition = node.definition
        line = self.body.line
        if node.keywords:
            raise self.body.refuse(
                f"cannot differentiate the call of {definition.name}, an inner function, with "
                "named arguments, which numba does not pass on; pass them by position",
                node,
            )
        given = [self.expressions.expression(argument, env) for argument in node.args]
        values = dict(zip(definition.parameters, given, strict=False))
        for parameter, default in definition.defaults.items():
            values.setdefault(parameter, default)
        if len(given) > len(definition.parameters) or set(values) != set(definition.parameters):
            raise self.body.refuse(
                f"{definition.name} takes the arguments ({', '.join(definition.parameters)}); "
                "pass these",
                node,
            )
        new = {old: self.body.fresh(old) for old in sorted(definition.bound)}
        body = rename(definition.body, new)
        for part in [inner for statement in body for inner in subtree(statement)]:
            if isinstance(part, (ast.stmt, ast.expr)) and not hasattr(part, "lineno"):
                part.lineno = line
        statements, result = self.structured(body)
        self.body.local |= set(new.values())
        for parameter, value in values.items():
            env[new[parameter]] = value
        outer = set(env)
        self.statements(statements, env, outer if result is None else outer | {result})
        self.body.line = line
        found = constant(None) if result is None else env[result]
        for identifier in assigned(statements):
            env.pop(identifier, None)
        for parameter in values:
            env.pop(new[parameter], None)
        return found

    # -- control flow -------------------------------------------------------------------------

    def branch(self, node: ast.If, env: Env, after: set[str]) -> None:
        cond = self.expressions.condition(node.test, env)
        line = node.lineno

        def side(nodes: list[ast.stmt], outcome: bool) -> Callable[[Env], None]:
            def append(inner: Env) -> None:
                self.body.departures.learn(node.test, outcome)
                self.statements(nodes, inner, after)

            return append

        self.expressions.choose(
            cond,
            side(node.body, True),
            side(node.orelse, False),
            env,
            after,
            line,
            not isinstance(node.test, Uncertain),
        )

    def for_loop(self, node: Any, env: Env, after: set[str]) -> None:
        over: list[Items] = []
        node, memory = self.plain_loop(node, env)
        bounds, bind = self.iteration(node.iter, env, over)
        roomy = self.lists.roomy
        self.lists.roomy = roomy | self.lists.reserve(node, bounds, env)
        index = self.body.fresh(stem_of(node.target, "i"))

        def body(inner: Env) -> None:
            bind(name(index), node.target, inner)
            self.statements(node.body, inner, around)

        exits = {part.id for part in node.exit}
        inside = live(node.body, after | exits)
        targets = set(assigned([ast.Assign([node.target], node.iter)]))
        around = after | exits | (live(node.body, after | exits | inside) - targets)
        # a name that the target assigns is carried only if it is read after the loop
        ends = [env[length_of(items)] for items in over]
        loop = self.loop(node, index, bounds, None, body, around, targets - after, env)
        loop.parallel = loop.exit is None and self.is_prange(node.iter)
        loop.memory = memory
        if memory is not None and loop.exit is not None:
            raise self.body.refuse(
                "cannot checkpoint a loop that is left early (break or return); let its iterations "
                "do nothing from then on, or loop over a plain range",
                node,
            )
        self.lists.roomy = roomy
        if not all(same(env[length_of(items)], n) for items, n in zip(over, ends, strict=True)):
            raise self.body.refuse(
                "cannot differentiate a loop over a list that changes its length in the loop; "
                "loop over a copy: items.copy()",
                node,
            )

    def while_loop(self, node: Any, env: Env, after: set[str]) -> None:
        exits = {part.id for part in node.exit}
        around = after | exits | used(node.test)
        around |= live(node.body, around | live(node.body, around))

        def body(inner: Env) -> None:
            self.statements(node.body, inner, around)

        self.loop(node, None, None, node.test, body, around, set(), env)

    def loop(
        self,
        node: Any,
        index: str | None,
        bounds: tuple[ast.expr, ast.expr, ast.expr] | None,
        test: ast.expr | None,
        body: Callable[[Env], None],
        around: set[str],
        within: set[str],
        env: Env,
    ) -> Loop:
        """Append a loop; `around` names the variables read in the next iteration or later."""
        line = node.lineno
        changed = assigned([node.target, *node.body] if index else node.body)
        lists = {
            identifier: value
            for identifier, value in env.items()
            if isinstance(value, Items) and identifier in changed
        }
        going = [v for v in changed if v in around and v not in within and v not in lists]
        going += [v for v in self.lists.grown(node.body, env) if v in env]
        inner = {k: v for k, v in env.items() if k not in within}
        phis = {}
        for identifier in going:
            phis[identifier] = self.body.fresh(identifier.split()[0])
            inner[identifier] = name(phis[identifier])
        at_start = dict(inner)
        cond: ast.expr | None = None

        def testing() -> None:
            nonlocal cond
            if test is not None:
                cond = self.expressions.condition(test, inner)
                if not isinstance(test, ast.Constant):
                    cond = self.expressions.undecided(cond)

        flags = {part.id for part in node.exit}
        self.lists.depth += 1
        with self.body.departures.inside(flags):
            test_block = self.body.inside(testing)
            body_block = self.body.inside(lambda: body(inner))
            at_end = self.body.departures.at(inner)
        self.lists.depth -= 1
        exits = [inner[part.id] for part in node.exit]
        exit_atom: ast.expr | None = None
        if exits:

            def leaving() -> None:
                nonlocal exit_atom
                exit_atom = exits[0]
                for other in exits[1:]:
                    either = ast.BinOp(exit_atom, ast.BitOr(), other)
                    exit_atom = self.body.let(either, "leave")
                exit_atom = self.expressions.undecided(exit_atom)

            body_block += self.body.inside(leaving)
        self.check_lists(env, inner, lists, phis, body_block, line)
        made = {v: inner[v] for v in going if isinstance(inner.get(v), Items)}
        going = [v for v in going if v not in made]
        going += sorted(self.lists.behind(inner, set(made)))
        carried = []
        for identifier in going:
            stem = identifier.split()[0]
            phi = phis.get(identifier) or self.body.fresh(stem)
            following = inner.get(identifier)
            if identifier in at_start and same(following, at_start[identifier]):
                # not assigned after all, so unchanged
                following = name(phi)
            elif (
                self.body.departures.is_unread(identifier, at_end)
                and env.get(identifier) is not None
            ):
                following = None  # there is no second iteration
            carried.append(Carried(phi, env.get(identifier), following, self.body.fresh(stem)))
        for identifier in changed:
            if identifier not in lists:
                env.pop(identifier, None)
        env.update(made)
        for identifier, entry in zip(going, carried, strict=True):
            env[identifier] = name(entry.out)
            self.body.departures.carry(flags, identifier, entry)
        loop = Loop(
            index,
            bounds,
            test_block,
            cond,
            body_block,
            exit_atom,
            carried,
            self.body.fresh("trips"),
            line,
            not isinstance(test, Uncertain),
            isinstance(test, Uncertain) and test.entered,
        )
        self.body.block.append(loop)
        return loop

    def check_lists(
        self,
        env: Env,
        inner: Env,
        lists: dict[str, Items],
        phis: dict[str, str],
        block: Block,
        line: int,
    ) -> None:
        """Refuse variables that hold a different list in each iteration of a loop."""
        wrong = {v for v, items in lists.items() if not same(inner.get(v), items)}
        read = {n for statement in walk(block) for n in reads(statement)}
        for identifier, phi in phis.items():
            if isinstance(inner.get(identifier), Items):
                if env.get(identifier) is not None or phi in read:
                    wrong.add(identifier)
        for identifier, value in env.items():
            if isinstance(value, Items):
                hidden = self.lists.behind(env, {identifier})
                hidden &= env.keys()  # dead lists have no variables
                if any(v not in phis and not same(inner.get(v), env[v]) for v in hidden):
                    wrong.add(identifier)
        if wrong:
            raise self.body.refuse(
                f"cannot differentiate {min(wrong)!r}, a list that is another one in the "
                "next iteration; use an array",
                line,
            )

    def iteration(
        self, node: ast.expr, env: Env, over: list[Items]
    ) -> tuple[Any, Callable[..., None]]:
        """Return the bounds of a ``for``, and a function that binds its target for an index.

        The lists that it iterates over are added to `over`.
        """
        match node:
            case ast.Call(called, _, []) if self.body.static_value(called) in (range, numba.prange):
                bounds = self.bounds(node, env)
                return tuple(bounds), lambda i, target, inner: self.assign(target, i, inner)
        length, item = self.sequence(node, env, over)
        return (
            (constant(0), length, constant(1)),
            lambda i, target, inner: self.assign(target, item(i), inner),
        )

    def plain_loop(self, node: ast.For, env: Env) -> tuple[ast.For, ast.expr | None]:
        """Return a loop without checkpoints; for one that has them, the number of states to keep.

        The number is 0 for the default.
        """
        call = node.iter
        if not isinstance(call, ast.Call) or self.body.static_value(call.func) is not checkpointed:
            return node, None
        named = {k.arg: k.value for k in call.keywords}
        given = dict(zip(("steps", "memory"), call.args, strict=False)) | named
        steps = given["steps"]
        if not isinstance(steps, ast.Call) or self.body.static_value(steps.func) is not range:
            raise self.body.refuse(
                "cannot differentiate a checkpointed loop over anything but range(...); write "
                "for i in tg.checkpointed(range(n))",
                node,
            )
        plain = copy.copy(node)
        plain.iter = steps
        match given.get("memory"):
            case None | ast.Constant(None):
                return plain, constant(0)
            case ast.Constant(memory) if type(memory) is not int or memory < 1:
                raise self.body.refuse(
                    "tapegrad.checkpointed: memory is an integer, and at least 1", node
                )
            case memory:
                return plain, self.expressions.expression(memory, env)

    def is_prange(self, node: ast.expr) -> bool:
        """Whether the iterations of a ``for`` over an expression may run in parallel."""
        return isinstance(node, ast.Call) and self.body.static_value(node.func) is numba.prange

    def bounds(self, node: ast.Call, env: Env) -> list[ast.expr]:
        """Return the start, end and step of a range."""
        given: list[Any] = [self.expressions.expression(argument, env) for argument in node.args]
        if len(given) == 1:
            return [constant(0), *given, constant(1)]
        for bound in given:
            bound.is_written = True  # its type matters to numba
        return given if len(given) == 3 else [*given, constant(1)]

    def sequence(
        self, node: ast.expr, env: Env, over: list[Items]
    ) -> tuple[ast.expr, Callable[[ast.expr], Any]]:
        """Return the length of an iterable, and a function that returns its item at an index."""
        if isinstance(node, ast.Call):
            function = self.body.static_value(node.func)
            if function is checkpointed:
                raise self.body.refuse(
                    "cannot differentiate a loop over tg.checkpointed(...) in something else; "
                    "loop over it directly, and count or take items in the loop",
                    node,
                )
            if function is enumerate:
                length, item = self.sequence(node.args[0], env, over)
                first = node.args[1] if len(node.args) > 1 else None
                first = node.keywords[0].value if node.keywords else first
                start = None if first is None else self.expressions.expression(first, env)

                def numbered(i: ast.expr) -> list[Any]:
                    number = i
                    if start is not None:
                        number = self.body.let(ast.BinOp(i, ast.Add(), start), "t")
                    return [number, item(i)]

                return length, numbered
            if function is zip and node.args:
                parts = [self.sequence(argument, env, over) for argument in node.args]
                length = parts[0][0]
                for other, _ in parts[1:]:
                    length = self.body.let(
                        ast.Call(self.body.builtin("min"), [length, other], []), "t"
                    )
                return length, lambda i: [item(i) for _, item in parts]
            if function is reversed:
                length, item = self.sequence(node.args[0], env, over)
                last = self.body.let(ast.BinOp(length, ast.Sub(), constant(1)), "t")
                return length, lambda i: item(self.body.let(ast.BinOp(last, ast.Sub(), i), "t"))
            if function is range and not node.keywords:  # numba cannot index a range
                bounds = self.bounds(node, env)
                written = [b for b in bounds if hasattr(b, "is_written")] or bounds[1:2]
                whole = self.body.let(ast.Call(self.body.builtin("range"), written, []), "t")

                def element(i: ast.expr) -> ast.expr:
                    distance = self.body.let(ast.BinOp(i, ast.Mult(), bounds[2]), "t")
                    return self.body.let(ast.BinOp(bounds[0], ast.Add(), distance), "t")

                return self.body.let(ast.Call(self.body.builtin("len"), [whole], []), "t"), element
            if function in (np.ndindex, np.ndenumerate, np.nditer):
                instead = "loop over x.flat" if function is np.nditer else "nest loops over range"
                what = f"cannot differentiate a loop over np.{function.__name__}; {instead}"
                raise self.body.refuse(what, node)
            if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_DICTS:
                raise self.body.refuse(NO_SEQUENCE, node)
        base = self.expressions.expression(node, env)
        if isinstance(base, Items):
            over.append(base)
            array = env[array_of(base)]
            return env[length_of(base)], lambda i: self.body.let(
                ast.Subscript(array, i, ast.Load()), "t"
            )
        if isinstance(base, ast.Name):
            self.body.iterated.setdefault(base.id, node)
        length = self.body.let(ast.Call(self.body.builtin("len"), [base], []), "t")
        return length, lambda i: self.body.let(ast.Subscript(base, i, ast.Load()), "t")
