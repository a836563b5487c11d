"""Expressions of whole arrays."""

from .expressions import Expressions
from .scope import group

WHOLE = ["np.sin({})", "0.5 * {}", "np.tanh({})", "-{}", "np.exp(np.sin({}))", "np.abs({})"]
WHOLE_TWO = ["{} + {}", "{} * {}", "{} - {}", "{} / (2.0 + np.cos({}))", "np.maximum({}, {})"]


class ArrayExpressions(Expressions):
    """Writes expressions whose value is an array."""

    def vector(self, scope, length, depth=1):
        """An array expression of one dimension; it may be an array that has a name, or a view."""
        same = scope.of_length(length)
        longer = [name for name, size in scope.vectors.items() if size >= length]
        rows = [name for name, shape in scope.matrices.items() if shape[1] == length]
        columns = [name for name, shape in scope.matrices.items() if shape[0] == length]
        flat = [name for name, shape in scope.matrices.items() if shape[0] * shape[1] == length]
        indexed = [name for name, (size, _) in scope.positions.items() if size == length]
        fields = [name for name, size in scope.records.items() if size == length]
        calls = self.callable_helpers(("vector", length))
        kind = self.weighted(
            full=1,
            name=4 * bool(same),
            part=2 * bool(longer),
            row=bool(rows),
            column=bool(columns),
            flat=bool(flat),
            gather=bool(longer),
            positions=2 * bool(indexed and scope.vectors),
            product=bool(columns),
            field=2 * bool(fields),
            call=4 * bool(calls),
            joined=bool(scope.vectors) and length > 1,
            one=2 * depth,
            two=2 * depth,
            scaled=2 * depth,
            where=depth,
            guarded=depth,
        )
        if kind == "name":
            return self.pick(same)
        if kind == "part":
            name = self.pick(longer)
            return f"{name}[{self.part(scope.vectors[name], length)}]"
        if kind == "row":
            name = self.pick(rows)
            return f"{name}[{self.index(scope, None, scope.matrices[name][0])}]"
        if kind == "column":
            name = self.pick(columns)
            return f"{name}[:, {self.index(scope, None, scope.matrices[name][1])}]"
        if kind == "flat":
            return f"{self.pick(flat)}.copy().reshape(-1)"
        if kind == "full":
            return f"np.full({length}, {group(self.atom(scope))} + 0.0)"
        if kind == "gather":
            name = self.pick(longer)
            picked = ", ".join(str(self.choose(scope.vectors[name])) for _ in range(length))
            return f"{name}[np.array([{picked}])]"
        if kind == "positions":
            self.note("index array")
            index = self.pick(indexed)
            enough = [n for n, s in scope.vectors.items() if s >= scope.positions[index][1]]
            return f"{self.pick(enough)}[{index}]" if enough else f"TABLE[{index} % 5]"
        if kind == "product":
            name = self.pick(columns)
            right = self.vector(scope, scope.matrices[name][1], 0)
            return f"np.dot({name}.copy(), {group(right)}.copy())"
        if kind == "field":
            return f"{self.pick(fields)}.grid"
        if kind == "call":
            self.note("array result of a call in an expression")
            return self.call(scope, self.pick(calls))
        if kind == "joined":
            self.note("concatenate")
            first = 1 + self.choose(length - 1)
            parts = [self.vector(scope, size, 0) for size in (first, length - first)]
            return f"np.concatenate(({', '.join(parts)}))"
        first = self.vector(scope, length, depth - 1)
        if kind == "guarded":
            risky = self.pick(["np.sqrt({})", "np.log({})", "1.0 / {}"]).format(group(first))
            return f"np.where({group(first)} > 0.1, {risky}, {group(self.atom(scope))})"
        if kind == "one":
            return self.pick(WHOLE).format(group(first))
        if kind == "two":
            second = self.vector(scope, length, depth - 1)
            return self.pick(WHOLE_TWO).format(group(first), group(second))
        if kind == "where":
            return f"np.where({first} > 0.15, {first}, {group(self.atom(scope))} * {group(first)})"
        if self.chance(1, 3):
            # a sum whose tangent is that of the array alone
            return f"{group(first)} {self.pick(['+', '-'])} {self.pick(['1.0', self.atom(scope)])}"
        return f"{group(self.atom(scope))} * {group(first)}"

    def fresh_vector(self, scope, length):
        """An array expression that makes an array."""
        return f"np.sin({self.vector(scope, length)})"

    def matrix(self, scope, rows, columns):
        """An array expression of two dimensions that makes an array."""
        same = [name for name, shape in scope.matrices.items() if shape == (rows, columns)]
        turned = [name for name, shape in scope.matrices.items() if shape == (columns, rows)]
        flat = scope.of_length(rows * columns)
        kind = self.weighted(
            zeros=1,
            full=1,
            like=2 * bool(same),
            scaled=2 * bool(same),
            turned=2 * bool(turned),
            flat=2 * bool(flat),
            outer=bool(scope.vectors),
        )
        if kind == "zeros":
            return f"{self.pick(['np.zeros', 'np.ones'])}(({rows}, {columns}))"
        if kind == "full":
            return f"np.full(({rows}, {columns}), {group(self.atom(scope))} + 0.0)"
        if kind == "like":
            maker = self.pick(["np.zeros_like({})", "np.ones_like({})", "np.sin({})", "{}.copy()"])
            return maker.format(self.pick(same))
        if kind == "scaled":
            row = group(self.vector(scope, columns, 0))
            return f"np.tanh({self.pick(same)} * {row})"
        if kind == "turned":
            self.note("transpose")
            return f"np.cos({self.pick(turned)}.T)"
        if kind == "outer":
            first, second = self.vector(scope, rows, 0), self.vector(scope, columns, 0)
            return f"np.outer({first}, {second})"
        self.note("reshape")
        return f"{self.pick(flat)}.copy().reshape(({rows}, {columns}))"

    def part(self, size, length):
        """A slice of so many elements."""
        options = []
        for step in (1, 2, -1):
            for start in range(size):
                stop = start + step * length
                last = start + step * (length - 1)
                if not 0 <= last < size:
                    continue
                if step == 1:
                    options.append(f"{start or ''}:{stop if stop < size else ''}")
                else:
                    options.append(f"{start}:{stop if stop >= 0 else ''}:{step}")
        return self.pick(options)
