"""Reverse mode: the reverse code of one function, and what its forward code has to keep.

The reverse of a block is written first, statement by statement from the last to the first, and
notes the primal values it reads. Each such value is then either still live, recomputed, or kept on
the tape: loop-carried values are kept, and values that follow from them by cheap operations are
recomputed. Only then is the forward code written, which keeps exactly these values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tapegrad.transform import builder as build
from tapegrad.transform import nodes
from tapegrad.transform.builder import Builder, head_of, range_of
from tapegrad.transform.codegen.analysis import Scope, written
from tapegrad.transform.codegen.forward_half import ForwardHalf
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.codegen.loop_shapes import (
    is_fusible,
    is_independent,
    is_recurrence,
    is_selected,
    is_sum,
    last_loop,
    may_add_nothing,
)
from tapegrad.transform.codegen.reverse_state import Region, ReverseState
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.codegen.stores import Copies, Stores
from tapegrad.transform.ir import (
    Block,
    Carried,
    Effect,
    If,
    Let,
    Loop,
    Role,
    Statement,
    Store,
    defined,
    name,
    raises,
    unused,
    walk,
)
from tapegrad.transform.kinds import is_array, is_real, may_share
from tapegrad.transform.nodes import binary, call_of, counting, is_number
from tapegrad.transform.rules import base as rules

_ONE = ast.Constant(1.0)


def _nothing() -> None:
    pass


class Reverse:
    """Writes the reverse code of one function.

    Parameters
    ----------
    state
        The state of reverse mode.
    given, results, receives
        As for `Shadows`.
    """

    def __init__(
        self,
        state: ReverseState,
        given: list[str],
        results: Sequence[str] = (),
        receives: bool = False,
    ) -> None:
        self.state = state
        self.shadows = Shadows(state, given, list(results), receives)
        self.copies = Copies(state)
        self.stores = Stores(state, self.copies)
        self.keeping = Keeping(state, self.shadows)
        self.forward = ForwardHalf(state, self.shadows, self.keeping, self.copies)
        state.shadows = self.shadows

    # -- blocks -------------------------------------------------------------------------------

    def region(
        self,
        scope: Scope,
        before: Callable[[], None],
        after: Callable[[], None] = _nothing,
        starts: Sequence[ast.stmt] = (),
    ) -> tuple[Builder, dict[str, None]]:
        """Write the reverse of a block.

        `before` writes the initial cotangents, `after` the code that uses the final ones; `starts`
        are statements before arrays of cotangents are made. Returns the code, and the names from
        outside whose cotangents it adds to.
        """
        with self.state.entered(scope) as region, self.state.writing() as code:
            before()
            for statement in reversed(scope.block):
                self.statement(statement)
            after()
            result = Builder()
            setup = self._bring_back(region, result)
        result.body += [*starts, *setup.body, *code.body]
        return result, region.outward

    def combined(
        self, scope: Scope, before: Callable[[], None], starts: Sequence[ast.stmt] = ()
    ) -> tuple[Builder, dict[str, None]]:
        """Write a block followed by its reverse, fusing its last loop with the reverse if possible.

        The values of the block are local variables. `starts` are statements before the reverse
        code. Returns the code, and the names from outside whose cotangents it adds to.
        """
        block = scope.block
        position = last_loop(block)
        fused: Builder | None = None
        with self.state.entered(scope) as region:
            with self.state.writing() as first:
                before()
                if position is None:
                    position = len(block)
                for statement in reversed(block[position + 1 :]):
                    self.statement(statement)
                if position < len(block):
                    fused = self._fused(block[position], block[position + 1 :])
            with self.state.writing() as last:
                if fused is None and position < len(block):
                    self.statement(block[position])
                for statement in reversed(block[:position]):
                    self.statement(statement)
            result = Builder()
            setup = self._bring_back(region, result)
        write_forward = self.forward.write_statements
        if fused is None:
            write_forward(result, block)
            result.body += [*starts, *setup.body, *first.body, *last.body]
        else:
            write_forward(result, block[:position])
            result.body += [*starts, *setup.body, *first.body, *fused.body]
            write_forward(result, block[position + 1 :])
            result.body += last.body
        return result, region.outward

    def _bring_back(self, region: Region, builder: Builder) -> Builder:
        """Write the code that restores the values a region needs; return that of its shadows."""
        setup, outer_shadows = self.shadows.set_up(region)
        outer_needs = self.keeping.plan(region.scope, region.needs, builder)
        assert region.outer is not None
        region.outer.needs.update(outer_needs)
        region.outer.shadows.update(outer_shadows)
        return setup

    def prepare(self, outward: dict[str, None]) -> None:
        """Initialize the cotangents that inner code adds to."""
        state = self.state
        for target in outward:
            if target in state.has:
                continue
            if target in state.region.scope.own:
                state.builder.assign(name(state.bar(target)), state.zero(target))
                state.has.add(target)
            else:
                state.region.outward[target] = None

    # -- statements ---------------------------------------------------------------------------

    def statement(self, statement: Statement) -> None:
        """Write the reverse of a statement."""
        if isinstance(statement, Let):
            if self._is_reversed(statement):
                self.write_vjp(statement)
        elif isinstance(statement, Store):
            self.stores.reverse(statement)
        elif isinstance(statement, If):
            self._branch(statement)
        elif isinstance(statement, Loop):
            self._loop(statement)
        else:
            assert isinstance(statement, Effect)

    def _is_reversed(self, let: Let) -> bool:
        """Whether an operation propagates cotangents."""
        state, rule = self.state, let.rule
        if isinstance(rule, (rules.Passive, rules.Part, rules.Unknown)):
            return False
        if rule.calls:
            return True
        if let.target not in state.types or not state.is_active(let.target):
            return False
        if is_array(state.types[let.target]):
            return rule.base is None
        return let.target in state.has

    def write_vjp(self, let: Let) -> None:
        """Write the reverse of an operation, with copies of operands that are overwritten later."""
        rule: rules.Rule = let.rule
        kept = self.copies.make(let, rule.contents(let))
        (rule.reading(kept) if kept else rule).write_vjp(self.state, let)
        self.copies.keep(let, kept)

    def _branch(self, statement: If) -> None:
        state = self.state
        sides = []
        outward: dict[str, None] = {}
        used = state.has | self.shadows.with_bases(state.region)
        taken = used & {phi.target for phi in statement.phis}
        for block, side in ((statement.then, "then"), (statement.orelse, "orelse")):

            def before(side: str = side) -> None:
                for phi in statement.phis:
                    value = getattr(phi, side)
                    if isinstance(value, ast.Name) and phi.target in taken:
                        self._pass_on(value.id, phi.target)

            if raises(block):  # it is never reversed
                sides.append(Builder())
                continue
            code, out = self.region(state.scopes.blocks[id(block)], before)
            sides.append(code)
            outward.update(out)
        then, orelse = sides
        if not then.body and not orelse.body:
            return
        self.prepare(outward)
        state.read(statement.cond)
        if then.body:
            state.builder.add(ast.If(statement.cond, then.body, orelse.body))
        else:
            state.builder.add(ast.If(nodes.opposite(statement.cond), orelse.body, []))

    def _pass_on(self, target: str, source: str) -> None:
        """Add the cotangent of a name to that of the name whose value it has."""
        state = self.state
        if not is_array(state.types[source]):
            state.add(target, name(state.bar(source)), _ONE)
        elif target not in self.shadows.inner:  # nobody reads these cotangents
            bar = name(state.derivative(source))
            state.add_array(target, bar, state.types[source].ndim)

    # -- loops --------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        state = self.state
        scope = state.scopes.blocks[id(loop.body)]
        going = [
            c
            for c in loop.carried
            if is_real(state.types[c.phi])
            and not is_array(state.types[c.phi])
            and state.is_active(c.phi)
        ]
        whole = self.shadows.values.carried(loop)
        sums = bool(going) and not whole and all(is_sum(loop, c) for c in going)
        if sums:
            code, outward = self._terms(scope, going)
        elif not whole and is_recurrence(loop, going, state.types):
            code, outward = self._recurrence(scope, going[0])
        else:
            code, outward = self._iteration(scope, going, whole)
        if not code.body and not going:
            return
        builder = state.builder
        for c in going:
            start = name(state.bar(c.out)) if c.out in state.has else state.zero(c.out)
            builder.assign(name(state.bar(c.phi)), start)
        for c in whole:
            builder.assign(name(state.derivative(c.phi)), state.shadow(c.out))
        self.prepare(dict.fromkeys(outward))
        self.keeping.write_elements_pops(builder, loop)
        if scope.rows:
            builder.update(name("top"), "-", self.keeping.needed(loop, scope))
        if_used = nodes.any_of([call_of("runtime.matters", name(state.bar(c.phi))) for c in going])
        around: AbstractContextManager[None] = nullcontext()
        inside: AbstractContextManager[None] = nullcontext()
        if not whole and may_add_nothing(loop, going, state, self.keeping):
            if all(c.out in state.skipped for c in going):
                around = builder.when(if_used)
            if not sums and all(is_selected(loop, c) for c in going):
                inside = builder.when(if_used)
        with around:
            self.keeping.write_rows(builder, scope)
            head, *first = self._reversed_head(loop, sums or not (going or whole))
            with builder.loop(head):
                for index, place in first:
                    builder.assign(index, place)
                with inside:
                    builder.extend(code)
        for c in (*going, *whole):
            if isinstance(c.init, ast.Name):
                self._pass_on(c.init.id, c.phi)

    def _iteration(
        self, scope: Scope, going: list[Carried], whole: list[Carried]
    ) -> tuple[Builder, dict[str, None]]:
        """Write the reverse of an iteration, starting from the cotangents of its carried values.

        These are numbers, and `whole` arrays.
        """
        state = self.state
        moved = self.shadows.move(scope.statement) if isinstance(scope.statement, Loop) else {}
        phis = [c.phi for c in going]
        nexts = [c.next.id for c in going if isinstance(c.next, ast.Name)]

        def before() -> None:
            seeds = []
            for c in going:
                assert isinstance(c.next, (ast.Name, ast.Constant))
                if isinstance(c.next, ast.Constant):
                    continue
                target = c.next.id
                if target == c.phi:
                    state.has.add(target)
                    continue
                direct = target in scope.own and target not in phis and nexts.count(target) == 1
                seed = name(state.bar(target) if direct else state.derivative(f"{c.phi}_next"))
                state.builder.assign(seed, state.projected(target, name(state.bar(c.phi))))
                seeds.append((target, seed, direct))
            for target, seed, direct in seeds:
                if direct:
                    state.has.add(target)
                else:
                    state.add(target, seed, _ONE)
            for c in whole:
                state.region.shadows[c.phi] = None
                if c.phi in moved:
                    state.region.shadows[moved[c.phi]] = None
                elif isinstance(c.next, ast.Name):
                    state.add_array(c.next.id, name(state.derivative(f"{c.phi}_next")))

        def after() -> None:
            for phi in phis:
                if phi not in state.has:
                    state.builder.assign(name(state.bar(phi)), state.zero(phi))

        starts = Builder()
        for c in whole:
            following = moved.get(c.phi, f"{c.phi}_next")
            starts.assign(name(state.derivative(following)), name(state.derivative(c.phi)))
        return self.region(scope, before, after, starts.body)

    def _terms(self, scope: Scope, sums: list[Carried]) -> tuple[Builder, dict[str, None]]:
        """Write the reverse of an iteration that only adds to sums: their cotangents stay."""
        self.state.frozen |= {c.phi for c in sums}
        return self.region(scope, lambda: self._seed(sums))

    def _seed(self, sums: list[Carried]) -> None:
        """Write the cotangents of sums after an iteration: those of the sums before it."""
        state = self.state
        for c in sums:
            assert isinstance(c.next, ast.Name)
            value = state.projected(c.next.id, name(state.bar(c.phi)))
            state.builder.assign(name(state.bar(c.next.id)), value)
            state.has.add(c.next.id)

    def _recurrence(self, scope: Scope, c: Carried) -> tuple[Builder, dict[str, None]]:
        """Write the reverse of a recurrence: its slope first, then the product with the cotangent.

        The slope does not depend on the cotangent, so the dependency chain from one iteration to
        the next is a single product.
        """
        state = self.state
        bar = state.bar(c.phi)
        slope = state.note(unused(f"{c.phi}_slope", state.types), Role.SLOPE, c.phi)
        assert isinstance(c.next, ast.Name)
        target = c.next.id

        def before() -> None:
            state.builder.assign(name(state.bar(target)), _ONE)
            state.has.add(target)
            state.renamed[c.phi] = slope
            state.scale = bar

        def after() -> None:
            if c.phi in state.has:
                state.builder.update(name(bar), "*", name(slope))
            else:
                state.builder.assign(name(bar), ast.Constant(0.0))
            state.scale = ""
            del state.renamed[c.phi]

        return self.region(scope, before, after)

    def _reversed_head(self, loop: Loop, is_free: bool) -> list[Any]:
        """Return the head of the loop over the iterations from the last to the first.

        The assignments that an iteration starts with follow.

        Independent iterations run from the first to the last, which compilers optimize better. They
        have to be free of cotangents that change from one to the next.
        """
        state = self.state
        if loop.bounds is None:
            state.region.needs[loop.trips] = None
            return [counting("_", call_of("range", name(loop.trips)))]
        low, high, step = loop.bounds
        state.read(low)
        state.read(step)
        index = loop.index or ""
        if is_free and is_independent(loop, state, self.keeping):
            state.read(high)
            return [head_of(loop)]
        place = binary(low, "+", binary(name("turn"), "*", step))
        if loop.exit is not None:
            state.region.needs[loop.trips] = None
            head = counting("turn", nodes.downward("range", name(loop.trips)))
            return [head, (name(index), place)]
        over = range_of(loop)
        state.read(high)
        if is_number(step, 1):
            first = binary(high, "-", ast.Constant(1))
            last: ast.expr = binary(low, "-", ast.Constant(1))
            if isinstance(low, ast.Constant):
                start: Any = low.value
                last = ast.Constant(start - 1)
            return [counting(index, call_of(over, first, last, ast.Constant(-1)))]
        count = call_of("len", call_of("range", low, high, step))
        return [counting("turn", nodes.downward(over, count)), (name(index), place)]

    # -- loops whose iterations are followed by their reverse ---------------------------------

    def _fused(self, loop: Loop, tail: Block) -> Builder | None:
        """Return a loop with its reverse in each iteration, None if the reverse has to wait."""
        state = self.state
        if self._has_to_wait(loop, tail):
            return None
        scope = state.scopes.blocks[id(loop.body)]
        self._make_local(scope)
        sums = [c for c in loop.carried if is_real(state.types[c.phi]) and state.is_active(c.phi)]
        live = [c for c in sums if c.out in state.has]
        if loop.index is not None:
            state.fused.add(loop.index)
        state.frozen |= {c.phi for c in sums}

        with state.writing() as builder:
            code, outward = self.combined(scope, lambda: self._seed(live))
            build.enter(builder, loop.carried)
            for c in live:
                builder.assign(name(state.bar(c.phi)), name(state.bar(c.out)))
            self.prepare(outward)
            with build.iteration(builder, loop):
                builder.extend(code)
                build.advance(builder, loop.carried)
            build.leave(builder, loop.carried)
            for c in live:  # the initial values of the sums
                if isinstance(c.init, ast.Name):
                    state.add(c.init.id, name(state.bar(c.out)), _ONE)
        return builder

    def _has_to_wait(self, loop: Loop, tail: Block) -> bool:
        """Whether the reverse of a loop needs results of the code after it, or of its reverse."""
        state = self.state
        late = {n for statement in (loop, *tail) for n in defined(statement)}
        late |= {state.derivative(n) for n in late}
        if any(n in late for n in (*state.region.needs, *state.region.shadows)):
            return True
        start, places = state.scopes.roots[id(loop)], state.scopes.roots
        added = [state.scopes.makers[n] for n in state.region.needs if n in state.added]
        if any(places[id(maker)] >= start for maker in added):
            return True
        changed = {state.arrays.of(n) for s in walk([loop, *tail]) for n in written(s)}
        arrays = [n for n in state.region.needs if may_share(state.types.get(n))]
        if any(state.arrays.of(n) in changed for n in arrays):
            return True
        if self.keeping.keeps_inside(tail, for_numbers=True):
            return True
        branches = [statement for statement in walk(tail) if isinstance(statement, If)]
        if any(
            state.scopes.blocks[id(block)].is_read for s in branches for block in (s.then, s.orelse)
        ):
            return True
        return not is_fusible(loop, state.types, state.arrays, state.scopes, state.activity)

    def _make_local(self, scope: Scope) -> None:
        """Mark the values of a block as live local variables: its reverse follows at once."""
        scope.local = True
        for inner in self.state.scopes.blocks.values():
            if inner.parent is scope and inner.kind in ("then", "else"):
                self._make_local(inner)
