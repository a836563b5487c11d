"""Single statements about arrays: writes, views, other names, new arrays."""

import itertools

from .array_expressions import WHOLE
from .scope import group, indented
from .statements import Statements


class ArrayStatements(Statements):
    """Writes one array statement."""

    def array_statement(self, scope):
        several = [
            pair
            for pair in itertools.combinations(scope.vectors, 2)
            if scope.vectors[pair[0]] == scope.vectors[pair[1]]
        ]
        some, moving = bool(scope.vectors), bool(scope.movable())
        movable_pair = any(a in scope.movable() and b in scope.movable() for a, b in several)
        kind = self.weighted(
            new_vector=3,
            new_matrix=1,
            write=4 * some,
            augment_element=4 * some,
            slice_write=3 * some,
            slice_augment=3 * some,
            whole_augment=2 * moving,
            view=3 * some,
            rebind=2 * moving,
            rebind_in_branch=2 * moving,
            swap_elements=some,
            swap=movable_pair,
            alias=2 * movable_pair,
            packed=2 * bool(several),
            record=some,
            positions=1,
            cell_write=3 * bool(scope.matrices),
            row_view=3 * bool(scope.matrices),
            row_write=3 * bool(scope.matrices),
            single_write=2 * bool(scope.singles),
            chosen_by_tuple=2 * moving,
            chosen_by_truth=2 * moving,
        )
        return getattr(self, kind)(scope)

    # elements and slices

    def write(self, scope):
        return [f"{self.element(scope)} = {self.small(scope)}"]

    def augment_element(self, scope):
        sign = self.pick(["+=", "+=", "-=", "*="])
        if sign == "*=":
            return [f"{self.element(scope)} *= 1.1 + 0.3 * np.sin({self.number(scope)})"]
        return [f"{self.element(scope)} {sign} {self.small(scope)}"]

    def single_write(self, scope):
        self.note("float32 array written")
        name = self.pick(scope.singles)
        index = self.index(scope, name, scope.singles[name])
        return [f"{name}[{index}] {self.pick(['=', '+='])} {self.small(scope)}"]

    def swap_elements(self, scope):
        first, second = self.element(scope), self.element(scope)
        return [f"{first}, {second} = {second}, {self.pick([first, self.small(scope)])}"]

    def target(self, scope):
        """A slice to write to, and its length."""
        name = self.pick(scope.vectors)
        size = scope.vectors[name]
        length = size - self.choose(size)
        part = ":" if length == size and self.chance(1, 2) else self.part(size, length)
        return f"{name}[{part}]", length

    def slice_write(self, scope):
        target, length = self.target(scope)
        if self.chance(1, 4):
            return [f"{target} = {self.small(scope)}"]
        return [f"{target} = {self.vector(scope, length)}"]

    def slice_augment(self, scope):
        self.note("slice changed in place")
        target, length = self.target(scope)
        if self.chance(1, 3):
            return [f"{target} *= {self.pick(['0.7', '-1.2', self.small(scope)])}"]
        sign = self.pick(["+=", "-="])
        value = self.small(scope) if self.chance(1, 3) else self.vector(scope, length)
        return [f"{target} {sign} {value}"]

    def whole_augment(self, scope):
        self.note("array changed in place")
        name = self.pick(scope.movable())
        if self.chance(1, 2):
            return [f"{name} *= {self.small(scope)}"]
        return [f"{name} += {self.vector(scope, scope.vectors[name])}"]

    def chosen_by_tuple(self, scope):
        """Elements that a tuple of positions chooses: one with a name, or of a condition."""
        self.note("subscript is a tuple")
        name = self.pick(scope.movable())
        size = scope.vectors[name]
        first = self.choose(size)
        positions = self.pick(
            [f"(np.array([{first}, {(first + 1) % size}]),)", f"(slice({first}, {first + 1}),)"]
        )
        if self.chance(1, 3):  # elements near the bound are near to another branch
            positions = f"np.{self.pick(['where', 'nonzero'])}({name} > {self.number(scope)})"
        lines, held = [], positions
        if self.chance(2, 3) or positions.startswith("("):
            held = self.name("c")
            lines = [f"{held} = {positions}"]
        write = self.pick(["= 0.7 *", "*=", "+=", "-="])
        return [*lines, f"{name}[{held}] {write} {group(self.small(scope))}"]

    def chosen_by_truth(self, scope):
        """A number where comparisons are true: of the array, of others, of parts that overlap."""
        self.note("stored where true")
        name = self.pick(scope.movable())
        size = scope.vectors[name]
        depth = self.choose(2)
        parts = [
            f"({self.vector(scope, size, depth)} {self.pick(['<', '>', '>='])} {self.atom(scope)})"
            for _ in range(1 + self.choose(2))
        ]
        truth, lines = f" {self.pick('&|')} ".join(parts), []
        if self.chance(1, 2):
            held = self.name("c")
            lines, truth = [f"{held} = {truth}"], held
        if self.chance(1, 4):
            other = self.pick(scope.vectors)
            lines += [f"{other}[{self.index(scope, other, scope.vectors[other])}] *= 0.8"]
        return [*lines, f"{name}[{truth}] {self.pick(['=', '=', '*=', '+='])} {self.atom(scope)}"]

    # matrices

    def cell_write(self, scope):
        sign = self.pick(["=", "=", "+=", "-="])
        return [f"{self.cell(scope)} {sign} {self.small(scope)}"]

    def row_view(self, scope):
        base = self.pick(scope.matrices)
        rows, columns = scope.matrices[base]
        name = self.name("v")
        kind = self.weighted(row=3, column=2, turned=2)
        self.note({"row": "row held", "column": "column held", "turned": "transpose held"}[kind])
        if kind == "turned":
            scope.matrices[name] = (columns, rows)
            return [f"{name} = {base}.T"]
        if kind == "column":
            lines = [f"{name} = {base}[:, {self.index(scope, None, columns)}]"]
            scope.vectors[name] = rows
            return lines
        lines = [f"{name} = {base}[{self.index(scope, None, rows)}]"]
        scope.vectors[name] = columns
        return lines

    def row_write(self, scope):
        base = self.pick(scope.matrices)
        rows, columns = scope.matrices[base]
        if base not in scope.kept and self.chance(1, 4):
            value = self.small(scope) if self.chance(1, 2) else self.vector(scope, columns)
            return [f"{base} {self.pick(['*=', '+='])} {value}"]
        self.note("row or column written")
        if self.chance(1, 3):
            value = self.vector(scope, rows)
            return [f"{base}[:, {self.index(scope, None, columns)}] = {value}"]
        sign = self.pick(["=", "+="])
        value = self.vector(scope, columns)
        return [f"{base}[{self.index(scope, None, rows)}] {sign} {value}"]

    # names of arrays

    def view(self, scope):
        self.note("view held")
        base = self.pick(scope.vectors)
        size = scope.vectors[base]
        length = size - self.choose(size)
        name = self.name("v")
        scope.vectors[name] = length
        return [f"{name} = {base}[{self.part(size, length)}]"]

    def rebind(self, scope):
        name = self.pick(scope.movable())
        if self.trips > 1:
            self.note("rebound in a loop")
        if self.chance(1, 2):
            return [f"{name} = {self.vector(scope, scope.vectors[name])}"]
        return [f"{name} = np.sin({self.vector(scope, scope.vectors[name])})"]

    def rebind_in_branch(self, scope):
        self.note("rebound in a branch")
        name = self.pick(scope.movable())
        size = scope.vectors[name]
        lines = [f"if {self.condition(scope)}:", f"    {name} = {self.vector(scope, size)}"]
        if self.chance(1, 3):
            lines += ["else:", f"    {name} = {self.vector(scope, size)}"]
        return lines

    def same_length(self, scope, names):
        """Two names of vectors of one length."""
        pairs = [(a, b) for a in names for b in names if a != b]
        return self.pick((a, b) for a, b in pairs if scope.vectors[a] == scope.vectors[b])

    def swap(self, scope):
        self.note("arrays swapped")
        first, second = self.same_length(scope, scope.movable())
        return [f"{first}, {second} = {second}, {first}"]

    def alias(self, scope):
        first, second = self.same_length(scope, scope.movable())
        if self.chance(1, 3):
            return [f"{first} = {second}"]
        self.note("array chosen by a condition")
        if self.chance(1, 2):
            return [f"if {self.condition(scope)}:", f"    {first} = {second}"]
        name = self.name("v")
        lines = [f"{name} = {first} if {self.condition(scope)} else {second}"]
        scope.vectors[name] = scope.vectors[first]
        return lines

    def packed(self, scope):
        """Arrays in a tuple are the same arrays."""
        self.note("arrays in a tuple")
        first, second = self.same_length(scope, list(scope.vectors))
        size = scope.vectors[first]
        name, one, other = self.name("t"), self.name("v"), self.name("v")
        lines = [f"{name} = ({first}, {second})"]
        scope.tuples[name] = (("vector", size), ("vector", size))
        if self.chance(1, 2):
            index = self.index(scope, None, size)
            return [*lines, f"{name}[{self.choose(2)}][{index}] = {self.small(scope)}"]
        scope.vectors[one] = scope.vectors[other] = size
        return [*lines, f"{one}, {other} = {name}"]

    def record(self, scope):
        self.note("array in a named tuple")
        name, base = self.name("s"), self.pick(scope.vectors)
        size = scope.vectors[base]
        lines = [f"{name} = State({group(self.number(scope))} + 0.0, {base})"]
        scope.records[name] = size
        if self.chance(1, 2):
            index = self.index(scope, None, size)
            lines.append(f"{name}.grid[{index}] {self.pick(['=', '+='])} {self.small(scope)}")
        return lines

    def positions(self, scope):
        """An array of indices."""
        name = self.name("k")
        length, bound = self.length, 1 + self.choose(self.length)
        kind = self.weighted(
            listed=1, counted=1, filled=1, sorted=bool(scope.of_length(self.length))
        )
        if kind == "listed":
            items = ", ".join(str(self.choose(bound)) for _ in range(length))
            lines = [f"{name} = np.array([{items}])"]
        elif kind == "counted":
            bound = length
            lines = [f"{name} = np.arange({length})"]
        elif kind == "sorted":
            bound = length
            lines = [f"{name} = np.argsort({self.pick(scope.of_length(length))})"]
        else:
            i = self.name("i")
            lines = [
                f"{name} = np.empty({length}, np.int64)",
                f"for {i} in range({length}):",
                f"    {name}[{i}] = ({i} * {1 + self.choose(3)} + {self.choose(3)}) % {bound}",
            ]
        scope.positions[name] = (length, bound)
        return lines

    # new arrays

    def filled(self, scope, name, length, value=None):
        """Lines that fill an array, element by element."""
        i = self.name("i")
        inner = scope.inner()
        inner.ints[i] = (0, length - 1)
        outside, self.trips = self.trips, self.trips * length
        value = value or self.small(inner)
        self.trips = outside
        return [f"for {i} in range({length}):", *indented([f"{name}[{i}] = {value}"])]

    def new_vector(self, scope):
        length = self.pick([self.length, self.length, *scope.vectors.values()])
        name = self.name("w")
        like = scope.of_length(length)
        kind = self.weighted(zeros=1, expression=2, loop=3, filled=2, copy=2 * bool(like))
        if kind == "zeros":
            makers = [f"np.zeros({length})", f"np.ones({length})"]
            makers += [f"np.{m}_like({other})" for m in ("zeros", "ones") for other in like[:1]]
            lines = [f"{name} = {self.pick(makers)}"]
        elif kind == "filled":
            first, last = self.atom(scope), self.atom(scope)
            elements = [f"{group(self.atom(scope))} + 0.0" for _ in range(length)]
            value = self.pick(
                [
                    f"np.linspace({first}, {last}, {length})",
                    f"np.array([{', '.join(elements)}])",
                    f"np.full({length}, {group(first)} + 0.0)",
                    f"{group(first)} * np.arange({length})",
                ]
            )
            lines = [f"{name} = {value}"]
        elif kind == "copy":
            self.note("copy")
            lines = [f"{name} = {self.pick(like)}.copy()"]
        elif kind == "expression":
            lines = [f"{name} = {self.fresh_vector(scope, length)}"]
        else:
            make = f"np.empty({length})"
            if like and self.chance(1, 2):
                make = f"np.empty_like({self.pick(like)})"
            lines = [f"{name} = {make}", *self.filled(scope, name, length)]
        scope.vectors[name] = length
        return lines

    def new_matrix(self, scope):
        rows, name = 2 + self.choose(2), self.name("w")
        same = [other for other, shape in scope.matrices.items() if shape == (rows, self.length)]
        if same and self.chance(1, 3):
            value = self.pick(WHOLE).format(self.pick(same))
        else:
            value = self.matrix(scope, rows, self.length)
        scope.matrices[name] = (rows, self.length)
        return [f"{name} = {value}"]
