"""The text of a loop in blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import nullcontext

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.independence.plan import are_not_negative, moved
from tapegrad.transform.independence.uses import READ, UnprovedError
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.elements import Element
from tapegrad.transform.optimize.indices import Position
from tapegrad.transform.optimize.iteration import Iteration
from tapegrad.transform.optimize.sharing import Sharing
from tapegrad.transform.printer import Writer
from tapegrad.transform.syntax import text_of

Pair = tuple[Element, int]  # with the place of the numbers that are written to it


class LoopCode:
    """Writes a loop in blocks.

    Parameters
    ----------
    iteration
        The code of one iteration.
    sharing
        Which arrays may share elements.
    fresh
        Returns a variant of a name that the function does not use.
    """

    def __init__(self, iteration: Iteration, sharing: Sharing, fresh: Callable[[str], str]) -> None:
        self.iteration = iteration
        self.elements = iteration.elements
        self.plan = iteration.plan
        self.fresh = fresh
        self.overlaps = self._overlaps(sharing)
        self.start, self.stop = fresh("first"), fresh("last")
        self.begin, self.end = fresh("begin"), fresh("end")
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

    def _overlaps(self, sharing: Sharing) -> list[tuple[str, str]]:
        """Return the pairs of arrays that must not share elements."""
        written, added = self.elements.written, self.elements.added
        return [
            (one, other)
            for one in sorted(written)
            for other in sorted(self.elements.arrays)
            if one != other
            and not (other in written and other < one)
            and not (one in added and other in added)
            and sharing.may_share(one, other)
        ]

    def _range(self) -> tuple[str, str, bool]:
        """Return the lowest index, the one after the highest, and whether the loop goes down."""
        start, stop, step = self.plan.bounds
        if step not in ("1", "-1") or self.plan.target == "turn":
            raise UnprovedError("of the step of its range")
        if step == "1":
            return start, stop, False
        return f"{stop} + 1", f"{start} + 1", True

    def are_apart(self) -> str:
        """Return the expression that says that no two arrays share elements."""
        return " and ".join(f"not runtime.overlap({one}, {other})" for one, other in self.overlaps)

    def text(self, are_apart: str) -> str:
        """Return the statements that take the place of the loop.

        They use the name of a variable that says that no two arrays share elements.
        """
        low, high, is_down = self._range()
        writer = Writer()
        tests = [f"{self.stop} - {self.start} >= {sizes.SHORT}"]
        lowest: dict[str, int] = {}
        for element in self.elements.found.values():
            if (found := element.position) is not None:
                lowest[found.base] = min(found.distance, lowest.get(found.base, found.distance))
        for base, distance in lowest.items():
            if base or not are_not_negative(self.plan, distance):
                tests.append(f"{Position(base, distance).text(self.start)} >= 0")
        tests += [are_apart] if self.overlaps else []
        tests += [f"{step} == 1" for step in sorted(self.elements.indices.assumed)]
        tests += self.elements.bounds(self.start, self.stop)
        neighbours = self._neighbours()
        if len(tests) == 1 and self._is_one_block():  # no second version of the loop to compile
            self.begin, self.end = low, high
            bounds = ast.parse(f"({low}, {high})", mode="eval")
            if used(bounds) & {*assigned(self.plan.loop.body)}:
                self.begin, self.end = self.start, self.stop
                writer(f"{self.start}, {self.stop} = {low}, {high}")
            self._compute(writer)
            self._commit(writer, neighbours)
            return writer.text()
        in_blocks = self.fresh("in_blocks")
        writer(f"{self.start} = {low}")
        writer(f"{self.stop} = {high}")
        writer(f"{in_blocks} = {' and '.join(dict.fromkeys(tests))}")
        if self.iteration.flags:  # which has the loop in order anyway, for blocks that fail
            self._blocks(writer, neighbours, is_down, in_blocks)
        else:
            with writer.block(f"if {in_blocks}:"):
                self._blocks(writer, neighbours, is_down, in_blocks)
            with writer.block("else:"):
                self._in_order(writer, self.start, self.stop, is_down)
        return writer.text()

    def _blocks(
        self, writer: Writer, neighbours: list[Pair], is_down: bool, in_blocks: str
    ) -> None:
        """Write the loop over blocks."""
        begin, end, failed = self.begin, self.end, self.iteration.failed
        if self._is_one_block():
            self.begin, self.end = self.start, self.stop
            self._compute(writer)
            self._commit(writer, neighbours)
            return
        self._clear(writer, neighbours, "0")
        writer(f"{end} = {self.stop}" if is_down else f"{begin} = {self.start}")
        remains = f"{self.start} < {end}" if is_down else f"{begin} < {self.stop}"
        with writer.block(f"while {remains}:"):
            if is_down:
                writer(f"{begin} = runtime.larger({end} - {sizes.WIDTH}, {self.start})")
            else:
                writer(f"{end} = runtime.smaller({begin} + {sizes.WIDTH}, {self.stop})")
            if self.iteration.flags:
                writer(f"{failed} = not {in_blocks}")
                with writer.block(f"if {in_blocks}:"):
                    self._compute(writer)
                with writer.block(f"if {failed}:"):
                    self._in_order(writer, begin, end, is_down)
                with writer.block("else:"):
                    self._commit(writer, neighbours)
            else:
                self._compute(writer)
                self._commit(writer, neighbours)
            writer(f"{end} = {begin}" if is_down else f"{begin} = {end}")

    def _is_one_block(self) -> bool:
        """Whether nothing is put aside, so that all iterations are one block."""
        return not self.iteration.places and not self.iteration.flags

    def _in_order(self, writer: Writer, first: str, last: str, is_down: bool) -> None:
        """Write the loop as it was, for some of its iterations."""
        bounds = f"{last} - 1, {first} - 1, -1" if is_down else f"{first}, {last}"
        with writer.block(f"for {self.plan.target} in range({bounds}):"):
            self._write(writer, self.plan.loop.body)

    def _write(self, writer: Writer, body: list[ast.stmt]) -> None:
        for node in body:
            for line in ast.unparse(ast.fix_missing_locations(node)).splitlines():
                writer(line)

    # -- computing ----------------------------------------------------------------------------

    def _compute(self, writer: Writer) -> None:
        """Write the loops that compute everything and put it aside."""
        iteration = self.iteration
        head = f"for {self.plan.target} in range({self.begin}, {self.end}):"
        lane = f"{iteration.lane} = {self.plan.target} - {self.begin}"
        if iteration.gathered:
            gathered = list(iteration.gathered.values())
            needed = iteration.needed_for([g.element for g in gathered])
            assert needed is not None
            with writer.block(head):
                writer(lane)
                self._write(writer, needed)
                for found in gathered:
                    writer(f"{iteration.at(found.place)} = {found.element.text}")
        for name in self.plan.sums:
            writer(f"{self.parts[name]} = {self._zero(name)}")
        for _, part in self.fixed:
            writer(f"{part} = 0.0")
        with writer.block(head):
            if iteration.places:
                writer(lane)
            self._write(writer, iteration.body)
            for name, part in self.parts.items():
                self._add(writer, part, iteration.terms[name], self._zero(name))
            for element, part in self.fixed:
                self._add(writer, part, element.local, "0.0")
            for element in self.set_at_once:
                writer(f"{element.text} = {element.local}")
            written: set[int] = set()
            for element, place, mask in self.put_aside:
                if place not in written:
                    writer(f"{iteration.at(place)} = {element.local}")
                    written.add(place)
                if mask is not None:
                    writer(f"{iteration.at(mask)} = 1.0 if {element.local} != 0.0 else 0.0")
            if iteration.flags:
                for flag in iteration.flags:  # one expression of all might be nested too deeply
                    writer(f"{iteration.failed} = {iteration.failed} | {flag}")

    def _zero(self, name: str) -> str:
        return "0.0" if str(self.plan.sums[name]) == "float64" else "0"

    def _add(self, writer: Writer, part: str, term: str, zero: str) -> None:
        added = f"runtime.plus({part}, {term})" if zero == "0.0" else f"{part} + {term}"
        writer(f"{part} = {added}")

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
        groups: dict[tuple[str, ...], list[Pair]] = {}
        for element, place in pairs:
            base = element.position.base if element.position is not None else ""
            key = (element.array, base, *map(text_of, element.index[:-1]))
            groups.setdefault(key, []).append((element, place))
        return list(groups.values())

    def _reach(self, group: list[Pair]) -> tuple[int, int]:
        distances = [e.position.distance for e, _ in group if e.position is not None]
        return min(distances), max(distances)

    def _clear(self, writer: Writer, neighbours: list[Pair], count: str) -> None:
        """Write zeros before the first number of a block, or after the last of `count`."""
        for group in self._groups(neighbours):
            low, high = self._reach(group)
            for element, place in group:
                assert element.position is not None
                # element k of the array gets number k - distance
                distance = element.position.distance
                is_first = count == "0"
                for k in range(low - distance, 0) if is_first else range(high - distance):
                    text = str(place + k) if is_first else f"{count} + {place + k}"
                    writer(f"{self.iteration.block}[runtime.index({text})] = 0.0")

    def _commit(self, writer: Writer, neighbours: list[Pair]) -> None:
        """Write the loops that write what was put aside."""
        iteration, target = self.iteration, self.plan.target
        for name, part in self.parts.items():
            writer(f"{name} = {name} + {part}")
        for element, part in self.fixed:
            if element.is_certain:
                writer(f"{element.text} += {part}")
            else:
                with writer.block(f"if {part} != 0.0:"):
                    writer(f"{element.text} += {part}")
        head = f"for {target} in range({self.begin}, {self.end}):"
        lane = f"{iteration.lane} = {target} - {self.begin}"
        if neighbours:
            count = f"{self.end} - {self.begin}"
            self._clear(writer, neighbours, count)
        for group in self._groups(neighbours):
            low, high = self._reach(group)
            element = group[0][0]
            bounds = f"{moved(self.begin, low)}, {moved(self.end, high)}"
            with writer.block(f"for {target} in range({bounds}):"):
                writer(lane)
                terms = []
                for other, place in group:
                    assert other.position is not None
                    terms.append(iteration.at(place - other.position.distance))
                assert element.position is not None
                last = f"runtime.index({target}{element.position.base})"
                parts = [*map(text_of, element.index[:-1]), last]
                writer(f"{element.array}[{', '.join(parts)}] += {' + '.join(terms)}")
        together = {id(e) for e, _ in neighbours}
        loops: dict[tuple[str, bool], list[tuple[Element, str, int | None]]] = {}
        for element, place, mask in self.put_aside:
            if id(element) not in together:
                is_direct = element.position is not None
                key = (element.array, is_direct)
                loops.setdefault(key, []).append((element, iteration.at(place), mask))
        for element in self.elements.found.values():
            if element.last is not None and element.array not in self.elements.added:
                key = (element.array, element.position is not None)
                loops.setdefault(key, []).append((element, text_of(element.last), None))
        for found in loops.values():
            needed = iteration.needed_for([element for element, _, _ in found])
            if needed is None:
                raise UnprovedError("an index depends on what is computed")
            with writer.block(head):
                writer(lane)
                self._write(writer, needed)
                for element, value, mask in found:
                    sign = "+=" if element.array in self.elements.added else "="
                    guard = writer.block(f"if {iteration.at(mask or 0)} != 0.0:")
                    with guard if mask is not None else nullcontext():
                        writer(f"{element.text} {sign} {value}")

    @property
    def gain(self) -> int:
        """How much there is to gain."""
        sums = len(self.plan.sums) + len(self.fixed)
        scattered = sum(e.position is None for e, _, _ in self.put_aside)
        moved = scattered + len(self.iteration.gathered)
        return self.iteration.work + 4 * sums + 2 * len(self._neighbours()) - 2 * moved
