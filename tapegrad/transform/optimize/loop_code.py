"""The code of a loop in blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext

from tapegrad.transform.builder import Builder
from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.independence.plan import are_not_negative, moved
from tapegrad.transform.independence.uses import READ, UnprovedError
from tapegrad.transform.ir import name
from tapegrad.transform.nodes import all_of, counting, integer
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.elements import Element
from tapegrad.transform.optimize.indices import Position
from tapegrad.transform.optimize.iteration import Iteration
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.syntax import key_of
from tapegrad.transform.trees import quoted

Pair = tuple[Element, int]  # with the place of the numbers that are written to it


class LoopCode:
    """Builds a loop in blocks.

    Parameters
    ----------
    iteration
        The code of one iteration.
    flow
        Which arrays may share elements.
    fresh
        Returns a variant of a name that the function does not use.
    """

    def __init__(self, iteration: Iteration, flow: Flow, fresh: Callable[[str], str]) -> None:
        self.iteration = iteration
        self.elements = iteration.elements
        self.plan = iteration.plan
        self.fresh = fresh
        self.builder = Builder()
        self.overlaps = self._overlaps(flow)
        self.start, self.stop = fresh("first"), fresh("last")
        self.begin, self.end = fresh("begin"), fresh("end")
        # the first iteration of a block, and the one after the last
        self.bounds: tuple[ast.expr, ast.expr] = (name(self.begin), name(self.end))
        self.parts = {name: fresh(f"{name}_part") for name in self.plan.sums}
        self._places: dict[str, int] = {}  # by the names of numbers
        # what is written: (element, place, place of the mask or None), or the sum of all iterations
        self.put_aside: list[tuple[Element, int, int | None]] = []
        self.fixed: list[tuple[Element, str]] = []
        self.set_at_once: list[Element] = []
        for element in self.elements.found.values():
            if element.local and element.kinds != {READ}:
                if element.is_fixed:
                    self.fixed.append((element, fresh(f"{element.array}_part")))
                elif self._is_set_at_once(element):
                    self.set_at_once.append(element)
                elif element.last is None or element.array in self.elements.added:
                    mask = None if element.is_certain else iteration.place()
                    self.put_aside.append((element, self._place(element), mask))

    def _is_set_at_once(self, element: Element) -> bool:
        """Whether an element is set where it is computed, and not put aside.

        No iteration is repeated in order then, and there are few arrays, so that the compiler
        compares their places before the loop.
        """
        return (
            element.last is None
            and element.position is not None
            and element.is_certain
            and element.array not in self.elements.added
            and not self.iteration.flags
            and not self.iteration.gathered
            and len(self.elements.arrays) <= sizes.FEW
        )

    def _place(self, element: Element) -> int:
        """Return the first place of what is written to an element; equal numbers share it."""
        value = self.iteration.only_addition(element)
        if not value:
            return self.iteration.place()
        if value not in self._places:
            self._places[value] = self.iteration.place()
        return self._places[value]

    def _overlaps(self, flow: Flow) -> list[tuple[str, str]]:
        """Return the pairs of arrays that must not share elements."""
        written, added = self.elements.written, self.elements.added
        return [
            (one, other)
            for one in sorted(written)
            for other in sorted(self.elements.arrays)
            if one != other
            and not (other in written and other < one)
            and not (one in added and other in added)
            and flow.may_share(one, other)
        ]

    def _range(self) -> tuple[ast.expr, ast.expr, bool]:
        """Return the lowest index, the one after the highest, and whether the loop goes down."""
        start, stop, step = self.plan.bounds
        if integer(step) not in (1, -1) or self.plan.target == "turn":
            raise UnprovedError("of the step of its range")
        if integer(step) == 1:
            return start, stop, False
        return moved(stop, 1), moved(start, 1), True

    def are_apart(self) -> ast.expr:
        """Return the expression that says that no two arrays share elements."""
        return all_of(
            [quoted("not runtime.overlap(x, y)", x=one, y=other) for one, other in self.overlaps]
        )

    def statements(self, are_apart: str) -> list[ast.stmt]:
        """Return the statements that take the place of the loop.

        They use the name of a variable that says that no two arrays share elements.
        """
        low, high, is_down = self._range()
        tests = self._tests(are_apart)
        neighbours = self._neighbours()
        builder = self.builder
        if len(tests) == 1 and self._is_one_block():  # no second version of the loop to compile
            self.bounds = low, high
            if (used(low) | used(high)) & {*assigned(self.plan.loop.body)}:
                self.bounds = name(self.start), name(self.stop)
                builder.quote("a, b = x, y", a=self.start, b=self.stop, x=low, y=high)
            self._begin_sums()
            self._compute()
            self._commit(neighbours)
            return builder.statements()
        in_blocks = self.fresh("in_blocks")
        builder.assign(name(self.start), low)
        builder.assign(name(self.stop), high)
        builder.assign(name(in_blocks), all_of(tests))
        if self.iteration.flags:  # which has the loop in order anyway, for blocks that fail
            self._blocks(neighbours, is_down, in_blocks)
        else:
            branch = builder.branch(name(in_blocks))
            with builder.within(branch.body):
                self._blocks(neighbours, is_down, in_blocks)
            with builder.within(branch.orelse):
                self._in_order(self.start, self.stop, is_down)
        return builder.statements()

    def _tests(self, are_apart: str) -> list[ast.expr]:
        """Return what must be true for the loop to run in blocks, once each."""
        first, last = name(self.start), name(self.stop)
        tests = [quoted("last - first >= n", first=first, last=last, n=sizes.SHORT)]
        lowest: dict[str, Position] = {}
        for element in self.elements.found.values():
            if (found := element.position) is not None:
                known = lowest.setdefault(found.base, found)
                if found.distance < known.distance:
                    lowest[found.base] = found
        for base, position in lowest.items():
            if base or not are_not_negative(self.plan, position.distance):
                tests.append(quoted("index >= 0", index=position.at(first)))
        tests += [name(are_apart)] if self.overlaps else []
        steps = sorted(self.elements.indices.assumed)
        tests += [quoted("step == 1", step=step) for step in steps]
        tests += self.elements.bounds(first, last)
        return list({key_of(test): test for test in tests}.values())

    def _blocks(self, neighbours: list[Pair], is_down: bool, in_blocks: str) -> None:
        """Add the loop over blocks."""
        builder, failed = self.builder, self.iteration.failed
        if self._is_one_block():
            self.bounds = name(self.start), name(self.stop)
            self._begin_sums()
            self._compute()
            self._commit(neighbours)
            return
        names = {"begin": self.begin, "end": self.end, "start": self.start, "stop": self.stop}
        self._clear(neighbours, None)
        builder.quote("end = stop" if is_down else "begin = start", **names)
        remains = quoted("start < end" if is_down else "begin < stop", **names)
        with builder.loop(ast.While(remains, [], [])):
            width = sizes.WIDTH
            if is_down:
                builder.quote("begin = runtime.larger(end - width, start)", width=width, **names)
            else:
                builder.quote("end = runtime.smaller(begin + width, stop)", width=width, **names)
            self._begin_sums()
            if self.iteration.flags:
                builder.quote("failed = not in_blocks", failed=failed, in_blocks=in_blocks)
                with builder.when(name(in_blocks)):
                    self._compute()
                branch = builder.branch(name(failed))
                with builder.within(branch.body):
                    self._in_order(self.begin, self.end, is_down)
                with builder.within(branch.orelse):
                    self._commit(neighbours)
            else:
                self._compute()
                self._commit(neighbours)
            builder.quote("end = begin" if is_down else "begin = end", **names)

    def _is_one_block(self) -> bool:
        """Whether nothing is put aside, so that all iterations are one block."""
        return not self.iteration.places and not self.iteration.flags

    def _in_order(self, first: str, last: str, is_down: bool) -> None:
        """Add the loop as it was, for some of its iterations."""
        over = "range(last - 1, first - 1, -1)" if is_down else "range(first, last)"
        head = counting(self.plan.target, quoted(over, first=first, last=last))
        with self.builder.loop(head):
            self.builder.body += self.plan.loop.body

    def _lanes(self) -> ast.For:
        """Return the head of a loop over the iterations of a block."""
        low, high = self.bounds
        return counting(self.plan.target, quoted("range(low, high)", low=low, high=high))

    def _set_lane(self) -> None:
        """Add the assignment of the number of an iteration in its block."""
        lane = name(self.iteration.lane)
        self.builder.quote("lane = k - low", lane=lane, k=self.plan.target, low=self.bounds[0])

    # -- computing ----------------------------------------------------------------------------

    def _compute(self) -> None:
        """Add the loops that compute everything and put it aside."""
        iteration, builder = self.iteration, self.builder
        if iteration.gathered:
            gathered = list(iteration.gathered.values())
            needed = iteration.needed_for([g.element for g in gathered])
            assert needed is not None
            with builder.loop(self._lanes()):
                self._set_lane()
                builder.body += needed
                for found in gathered:
                    builder.assign(iteration.at(found.place), found.element.expr())
        with builder.loop(self._lanes()):
            if iteration.places:
                self._set_lane()
            builder.body += iteration.body
            for number, part in self.parts.items():
                self._add(part, iteration.terms[number], self._zero(number))
            for element, part in self.fixed:
                self._add(part, element.local, ast.Constant(0.0))
            for element in self.set_at_once:
                builder.assign(element.expr(), name(element.local))
            written: set[int] = set()
            for element, place, mask in self.put_aside:
                if place not in written:
                    builder.assign(iteration.at(place), name(element.local))
                    written.add(place)
                if mask is not None:
                    is_set = quoted("1.0 if x != 0.0 else 0.0", x=element.local)
                    builder.assign(iteration.at(mask), is_set)
            for flag in iteration.flags:  # one expression of all might be nested too deeply
                builder.quote("failed = failed | flag", failed=iteration.failed, flag=flag)

    def _begin_sums(self) -> None:
        """Add the assignments with which the sums of a block begin."""
        for number, part in self.parts.items():
            self.builder.assign(name(part), self._zero(number))
        for _, part in self.fixed:
            self.builder.assign(name(part), ast.Constant(0.0))

    def _zero(self, number: str) -> ast.Constant:
        return ast.Constant(0.0 if str(self.plan.sums[number]) == "float64" else 0)

    def _add(self, part: str, term: str, zero: ast.Constant) -> None:
        is_float = isinstance(zero.value, float)
        added = "part = runtime.plus(part, term)" if is_float else "part = part + term"
        self.builder.quote(added, part=part, term=term)

    # -- writing ------------------------------------------------------------------------------

    def _neighbours(self) -> list[Pair]:
        """Return what is added to elements in several distances, with the places."""
        found = []
        for element, place, mask in self.put_aside:
            if element.array in self.elements.added and mask is None:
                if element.position is not None:
                    found.append((element, place))
        groups = [group for group in self._groups(found) if len(group) > 1]
        return [pair for group in groups if self._is_near(group) for pair in group]

    def _is_near(self, group: list[Pair]) -> bool:
        low, high = self._reach(group)
        return high - low <= sizes.MARGIN

    def _groups(self, pairs: list[Pair]) -> list[list[Pair]]:
        """Return elements by what they are besides their distance."""
        groups: dict[tuple[object, ...], list[Pair]] = {}
        for element, place in pairs:
            base = element.position.base if element.position is not None else ""
            key = (element.array, base, *map(key_of, element.index[:-1]))
            groups.setdefault(key, []).append((element, place))
        return list(groups.values())

    def _reach(self, group: list[Pair]) -> tuple[int, int]:
        distances = [e.position.distance for e, _ in group if e.position is not None]
        return min(distances), max(distances)

    def _clear(self, neighbours: list[Pair], count: ast.expr | None) -> None:
        """Set to 0 what is before the first number of a block, or after the last of `count`."""
        block = self.iteration.block
        for group in self._groups(neighbours):
            low, high = self._reach(group)
            for element, place in group:
                assert element.position is not None
                # element k of the array gets number k - distance
                distance = element.position.distance
                for k in range(low - distance, 0) if count is None else range(high - distance):
                    index: ast.expr = ast.Constant(place + k)
                    if count is not None:
                        index = quoted("n + k", n=count, k=place + k)
                    self.builder.quote("block[runtime.index(k)] = 0.0", block=block, k=index)

    def _commit(self, neighbours: list[Pair]) -> None:
        """Add the loops that write what was put aside."""
        builder = self.builder
        for number, part in self.parts.items():
            builder.quote("x = x + part", x=number, part=part)
        for element, part in self.fixed:
            is_set = quoted("part != 0.0", part=part)
            with nullcontext() if element.is_certain else builder.when(is_set):
                builder.update(element.expr(), "+", name(part))
        if neighbours:
            low, high = self.bounds
            self._clear(neighbours, quoted("high - low", low=low, high=high))
        for group in self._groups(neighbours):
            self._commit_sum(group)
        for found in self._elements_by_loop(neighbours):
            needed = self.iteration.needed_for([element for element, _, _ in found])
            if needed is None:
                raise UnprovedError("an index depends on what is computed")
            with builder.loop(self._lanes()):
                self._set_lane()
                builder.body += needed
                for element, value, mask in found:
                    self._commit_element(element, value, mask)

    def _commit_sum(self, group: Sequence[Pair]) -> None:
        """Add the loop that adds, to each element, what neighbouring iterations add to it."""
        iteration, target, builder = self.iteration, self.plan.target, self.builder
        low, high = self._reach([*group])
        first, last = moved(self.bounds[0], low), moved(self.bounds[1], high)
        head = counting(target, quoted("range(first, last)", first=first, last=last))
        with builder.loop(head):
            self._set_lane()
            terms = []
            for other, place in group:
                assert other.position is not None
                terms.append(iteration.at(place - other.position.distance))
            total = terms[0]
            for term in terms[1:]:
                total = ast.BinOp(total, ast.Add(), term)
            element = group[0][0]
            assert element.position is not None
            builder.update(element.expr_at(element.position.start(target)), "+", total)

    def _elements_by_loop(
        self, neighbours: list[Pair]
    ) -> list[list[tuple[Element, ast.expr, int | None]]]:
        """Return what else is written, in the loops that write it, with values and masks."""
        together = {id(element) for element, _ in neighbours}
        loops: dict[tuple[str, bool], list[tuple[Element, ast.expr, int | None]]] = {}
        for element, place, mask in self.put_aside:
            if id(element) not in together:
                key = (element.array, element.position is not None)
                loops.setdefault(key, []).append((element, self.iteration.at(place), mask))
        for element in self.elements.found.values():
            if element.last is not None and element.array not in self.elements.added:
                key = (element.array, element.position is not None)
                loops.setdefault(key, []).append((element, element.last, None))
        return list(loops.values())

    def _commit_element(self, element: Element, value: ast.expr, mask: int | None) -> None:
        is_set = quoted("x != 0.0", x=self.iteration.at(mask or 0))
        with nullcontext() if mask is None else self.builder.when(is_set):
            if element.array in self.elements.added:
                self.builder.update(element.expr(), "+", value)
            else:
                self.builder.assign(element.expr(), value)

    @property
    def gain(self) -> int:
        """How much there is to gain."""
        sums = len(self.plan.sums) + len(self.fixed)
        scattered = sum(e.position is None for e, _, _ in self.put_aside)
        moved = scattered + len(self.iteration.gathered)
        near = 2 * len(self._neighbours())
        return self.iteration.work + 4 * sums + near + 2 * self._lines_beside() - 2 * moved

    def _lines_beside(self) -> int:
        """Return how many lines of arrays are added to beside others, which may be the same."""
        lines: dict[str, set[Hashable]] = {}
        for element, _, mask in self.put_aside:
            if mask is None and element.position is not None:
                if element.array in self.elements.added:
                    line = element.position.base, *map(key_of, element.index[:-1])
                    lines.setdefault(element.array, set()).add(line)
        return sum(len(found) for found in lines.values() if len(found) > 1)
