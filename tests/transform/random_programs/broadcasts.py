"""Operands with different numbers of dimensions, of which the one with more has no derivative."""

from .array_statements import ArrayStatements
from .scope import group

WITH_TABLE = [
    "{0} * {1}",
    "{1} * {0}",
    "{0} + {1}",
    "{1} - {0}",
    "{1} / (2.0 + np.cos({0}))",
    "np.maximum({0}, {1})",
    "np.minimum({1}, {0})",
    "np.where({1} > 0.15, {0}, {1})",
    "np.where({0} > 0.15, {1}, {0})",
    "np.arctan2({1}, 2.0 + np.sin({0}))",
    "np.hypot({1}, 1.5 + np.sin({0}))",
]


class Broadcasts(ArrayStatements):
    """Writes operations that repeat what is differentiated along a table."""

    def table(self, scope, columns):
        """An array without a derivative, of two or three dimensions, and its shape."""
        own = [name for name, shape in scope.tables.items() if shape[1] == columns]
        some = 2 * (columns <= 8)
        kind = self.weighted(ones=1, own=4 * bool(own), grid=some, counts=some, cube=some, order=1)
        rows = 1 + self.choose(3)
        if kind == "own":
            name = self.pick(own)
            return name, scope.tables[name]
        if kind == "cube":
            return f"CUBE[:, :{rows}, :{columns}]", (2, rows, columns)
        if kind == "ones":
            return f"np.ones(({rows}, {columns}))", (rows, columns)
        if kind == "order":
            return f"np.arange({rows * columns}).reshape(({rows}, {columns}))", (rows, columns)
        return f"{kind.upper()}[:{rows}, :{columns}]", (rows, columns)

    def smaller_operand(self, scope, shape):
        """What may have a derivative and has fewer dimensions, or fewer rows, than a table."""
        rows, columns = shape[-2:]
        same = [name for name, found in scope.matrices.items() if found == (rows, columns)]
        kind = self.weighted(
            vector=6, number=1, column=1, row=1, matrix=3 * bool(same and len(shape) == 3)
        )
        if kind == "matrix":
            return self.pick(same)
        if kind == "number":
            return self.small(scope, 1)
        if kind == "column":
            return f"{self.fresh_vector(scope, rows)}.copy().reshape(({rows}, 1))"
        text = self.vector(scope, columns)
        return f"{group(text)}.copy().reshape((1, {columns}))" if kind == "row" else text

    def spread(self, scope):
        """An operation of a table and something smaller, and the shape of its result."""
        columns = self.pick([self.length, self.length, *scope.vectors.values()])
        table, shape = self.table(scope, columns)
        operand = group(self.smaller_operand(scope, shape))
        return self.pick(WITH_TABLE).format(operand, table), shape

    def broadcast(self, scope):
        """A table meets something smaller; sums of the result, or the result itself, go on."""
        kind = self.weighted(total=2, along=3, whole=2, part=1)
        if kind == "part" and scope.vectors:
            name = self.pick(scope.vectors)
            shape = (1 + self.choose(3), scope.vectors[name])
            whole = self.pick([name, f"np.sin({name})"])
            text = f"np.broadcast_to({whole}, {shape})"
            if self.chance(1, 2):
                text = f"{text} * {group(self.vector(scope, shape[1], 0))}"
        else:
            text, shape = self.spread(scope)
        if kind == "along":
            axis = self.choose(len(shape))
            rest = shape[:axis] + shape[axis + 1 :]
            sums = f"{group(text)}.sum(axis={axis})" if self.chance(1, 2) else ""
            return self.named(scope, f"np.tanh({sums or f'np.sum({text}, axis={axis})'})", rest)
        if kind == "whole" and len(shape) == 2:
            return self.named(scope, text, shape)
        name = self.name("u")
        scope.floats.append(name)
        total = self.pick(["np.sum({})", "np.mean({})", "np.max({})"]).format(text)
        return [f"{name} = np.sin({total})"]

    def named(self, scope, text, shape):
        """A line that names an array."""
        if len(shape) == 1:
            name = self.name("v")
            scope.vectors[name] = shape[0]
        else:
            name = self.name("m")
            scope.matrices[name] = shape
        return [f"{name} = {text}"]

    def broadcast_write(self, scope):
        """Something smaller is written into a matrix, or added to it."""
        columns = self.pick([self.length, self.length, *scope.vectors.values()])
        given = [name for name, found in scope.matrices.items() if found[1] == columns]
        lines = []
        if given and self.chance(1, 2):
            name = self.pick(given)
        else:
            table, shape = self.table(scope, columns)
            while len(shape) == 3:
                table, shape = f"{table}[1]", shape[1:]
            name = self.name("m")
            maker = self.pick([f"{table} + 0.0", f"np.zeros({shape})"])
            lines.append(f"{name} = {maker}")
            scope.matrices[name] = shape
        rows = scope.matrices[name][0]
        value = self.smaller_operand(scope, scope.matrices[name])
        if self.chance(1, 3):
            grid = f"GRID[:{rows}, :{columns}]"
            if columns <= 8 and rows <= 3:
                value = f"{group(value)} * {grid}"
        target = self.pick([f"{name}[...]", f"{name}[:]", f"{name}[:, :]", name, name])
        if target == name and (name in scope.kept or self.chance(1, 4)):
            target = f"{name}[{self.part(rows, rows)}]"
        sign = self.pick(["+=", "-=", "*="] if target == name else ["=", "=", "+="])
        if sign != "=" and (sign == "*=" or not self.chance(1, 4)):
            value = f"np.tanh({value})"  # an operand that may overlap is refused
        return [*lines, f"{target} {sign} {value}"]
