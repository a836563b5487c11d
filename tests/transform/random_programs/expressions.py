"""Expressions of numbers: atoms, indices, conditions, calls."""

from .scope import Chooser, group

CONSTANTS = ["0.3", "0.7", "1.1", "-0.4", "RATE"]
ONE = [
    "np.sin({})",
    "np.cos({})",
    "np.tanh({})",
    "np.exp(np.sin({}))",
    "np.sqrt(1.5 + np.cos({}))",
    "np.log(2.0 + np.sin({}))",
    "math.sin({})",
    "math.exp(math.cos({}))",
    "np.arctan({})",
    "-{}",
    "{} ** 2",
    "{} ** 3",
    "abs({})",
]
TWO = [
    "{} + {}",
    "{} * {}",
    "{} - {}",
    "{} / (2.0 + np.cos({}))",
    "(1.5 + np.sin({})) ** np.cos({})",
    "np.arctan2({}, 2.0 + np.sin({}))",
    "max({}, {})",
    "min({}, {})",
    "np.hypot({}, 1.0 + {} ** 2)",
]
MOST_STEPS = 150


class Expressions(Chooser):
    """Writes expressions whose value is a number or a truth value."""

    def atom(self, scope):
        kind = self.weighted(
            constant=1,
            float=4 * bool(scope.floats),
            int=bool(scope.ints),
            element=3 * bool(scope.vectors),
            cell=2 * bool(scope.matrices),
            item=2 * bool(scope.tuples),
            field=2 * bool(scope.records),
            single=bool(scope.singles),
            listed=2 * bool(scope.lists),
            complex=2 * bool(scope.complexes or scope.complex_vectors),
        )
        if kind == "float":
            return self.pick(scope.floats)
        if kind == "int":
            return f"{self.pick(CONSTANTS)} * {self.pick(scope.ints)}"
        if kind == "element":
            return self.element(scope)
        if kind == "cell":
            return self.cell(scope)
        if kind == "item":
            name = self.pick(scope.tuples)
            return self.item(scope, name, scope.tuples[name])
        if kind == "field":
            name = self.pick(scope.records)
            self.note("named tuple read")
            if self.chance(1, 2):
                return f"{name}.level"
            return f"{name}.grid[{self.index(scope, None, scope.records[name])}]"
        if kind == "complex":
            return self.real_part(scope)
        if kind == "listed":
            return self.list_item(scope)
        if kind == "single":
            name = self.pick(scope.singles)
            return f"{name}[{self.index(scope, name, scope.singles[name])}]"
        return self.pick(CONSTANTS)

    def item(self, scope, text, kinds):
        """A number in a tuple."""
        k = self.choose(len(kinds))
        return self.number_in(scope, f"{text}[{k}]", kinds[k])

    def number_in(self, scope, text, kind):
        """A number made of a value of any kind."""
        if kind in ("float", None) or kind[0] == "int":
            return text
        if kind == "complex":
            return self.pick([f"{text}.real", f"{text}.imag", f"abs({text})"])
        if kind[0] == "complex vector":
            index = self.index(scope, None, kind[1])
            return self.pick([f"np.sum(np.abs({text}))", f"{text}[{index}].imag"])
        if kind[0] == "vector":
            if self.chance(1, 2):
                return f"np.sum({text})"
            return f"{text}[{self.index(scope, None, kind[1])}]"
        if kind[0] == "matrix":
            if self.chance(1, 2):
                return f"np.sum({text})"
            row, column = self.index(scope, None, kind[1]), self.index(scope, None, kind[2])
            return f"{text}[{row}, {column}]"
        if kind[0] == "record":
            return self.pick([f"{text}.level", f"np.sum({text}.grid)"])
        return self.item(scope, text, kind[1])

    def element(self, scope):
        name = self.pick(scope.vectors)
        return f"{name}[{self.index(scope, name, scope.vectors[name])}]"

    def cell(self, scope):
        name = self.pick(scope.matrices)
        rows, columns = scope.matrices[name]
        row, column = self.index(scope, None, rows), self.index(scope, None, columns)
        return f"{name}[{row}, {column}]" if self.chance(3, 4) else f"{name}[{row}][{column}]"

    def index(self, scope, name, length):
        """A position in an array of a length."""
        kind = self.weighted(
            constant=2,
            int=4 * bool(scope.ints),
            extreme=bool(scope.vectors),
            call=2 * bool(self.callable_helpers("int")),
            gathered=2 * bool(scope.positions),
        )
        if kind == "constant":
            return str(self.choose(2 * length) - length) if self.chance(1, 2) else "0"
        if kind == "extreme":
            same = scope.of_length(length)
            if same and self.chance(1, 3):
                return f"{self.pick(['np.argmin', 'np.argmax'])}({self.pick(same)})"
            return str(self.choose(length))
        if kind == "call":
            self.note("call in a subscript")
            helper = self.pick(self.callable_helpers("int"))
            return f"{self.call(scope, helper)} % {length}"
        if kind == "gathered":
            name = self.pick(scope.positions)
            size, bound = scope.positions[name]
            text = f"{name}[{self.choose(size)}]"
            return text if bound <= length else f"{text} % {length}"
        k = self.pick(scope.ints)
        least, greatest = scope.ints[k]
        inside = -length <= least and greatest < length
        if inside and not self.chance(1, 4):
            return k
        size = f"len({name})" if name and self.chance(1, 3) else str(length)
        if least >= 0 and greatest < length and self.chance(1, 2):
            return self.pick([f"-{k} - 1", f"{size} - 1 - {k}"])
        return f"({k} + {self.choose(3)}) % {size}" if self.chance(1, 2) else f"{k} % {size}"

    def number(self, scope, depth=2):
        if depth == 0 or not self.chance(2, 3):
            return self.atom(scope)
        powers = [k for k, (least, most) in scope.ints.items() if least >= 0 and most <= 5]
        kind = self.weighted(
            one=4,
            two=4,
            choice=2,
            guarded=2,
            sum=3 * bool(scope.vectors or scope.matrices),
            call=6 * bool(self.callable_helpers(*self.with_numbers())),
            power=bool(powers),
        )
        if kind == "one":
            return self.pick(ONE).format(group(self.number(scope, depth - 1)))
        if kind == "two":
            first, second = self.number(scope, depth - 1), self.number(scope, depth - 1)
            return self.pick(TWO).format(group(first), group(second))
        if kind == "choice":
            first, second = self.number(scope, depth - 1), self.number(scope, depth - 1)
            return f"({first} if {self.condition(scope)} else {second})"
        if kind == "guarded":
            # what is not finite on the branch that is not taken
            base, other = group(self.atom(scope)), self.atom(scope)
            risky = self.pick(["np.sqrt({})", "np.log({})", "1.0 / {}"]).format(base)
            return f"({risky} if {base} > 0.1 else {other})"
        if kind == "power":
            return f"{group(self.number(scope, depth - 1))} ** {self.pick(powers)}"
        if kind == "call":
            return self.number_call(scope)
        return self.total(scope)

    def with_numbers(self):
        """Kinds of results that hold a number."""
        return [helper.result for helper in self.helpers if helper.result is not None]

    def number_call(self, scope):
        """A number that a call makes, perhaps a part of its result."""
        helper = self.pick(self.callable_helpers(*self.with_numbers()))
        if helper.result != "float":
            self.note("part of the result of a call")
        return self.number_in(scope, self.call(scope, helper), helper.result)

    def callable_helpers(self, *results):
        """Helpers with one of these kinds of results that may be called here."""
        return [
            helper
            for helper in self.helpers
            if helper.steps * self.trips <= MOST_STEPS
            and (helper.result in results or ("int" in results and kind_of(helper.result) == "int"))
        ]

    def total(self, scope):
        """A reduction of an array."""
        name = self.pick([*scope.vectors, *scope.matrices])
        kinds = ["np.sum({})", "0.5 * {}.sum()", "np.mean({})", "np.max({})", "np.min({})"]
        kinds += ["{}.max()"]
        if name in scope.vectors:
            kinds += ["product", "product", "dot", "np.sum({0}[{0} > 0.1])", "np.prod({})"]
        kind = self.pick(kinds)
        if kind == "dot":
            same = scope.of_length(scope.vectors[name])
            return f"np.dot({name}.copy(), {self.pick(same)}.copy())"
        if kind == "product":
            other = self.vector(scope, scope.vectors[name])
            return f"np.sum({name} * {group(other)})"
        return kind.format(name)

    def small(self, scope, depth=2):
        """A number of size one or so."""
        text = self.number(scope, depth)
        how = self.pick(["np.sin({})", "np.sin({})", "np.tanh({})", "0.5 * np.cos({})"])
        return how.format(text)

    def condition(self, scope, depth=1):
        kind = self.weighted(
            level=3,
            two=1,
            between=1,
            even=bool(scope.ints),
            count=bool(scope.ints),
            both=depth,
            either=depth,
            negation=depth,
            call=2 * bool(self.callable_helpers("float")),
        )
        sign = self.pick(["<", ">", "<=", ">="])
        level = self.pick(["0.1", "-0.2", "0.45"])
        if kind == "level":
            return f"{self.number(scope, depth)} {sign} {level}"
        if kind == "two":
            return f"{self.atom(scope)} {sign} {self.atom(scope)}"
        if kind == "between":
            return f"-0.3 < {group(self.number(scope, depth))} < 0.6"
        if kind == "call":
            self.note("call in a condition")
            text = self.call(scope, self.pick(self.callable_helpers("float")))
            if self.chance(1, 3):
                return f"-0.5 < {text} < 0.4"
            return f"{text} {sign} {level}"
        if kind == "even":
            return f"{self.pick(scope.ints)} % 2 == {self.choose(2)}"
        if kind == "count":
            return f"{self.pick(scope.ints)} {self.pick(['>', '<', '==', '!='])} {self.choose(4)}"
        if kind == "negation":
            return f"not ({self.condition(scope, 0)})"
        word = {"both": "and", "either": "or"}[kind]
        return f"{self.condition(scope, 0)} {word} {self.condition(scope, 0)}"

    # calls

    def call(self, scope, helper):
        """A call of a helper, with arguments of the right kinds."""
        # what is called in an argument is simpler
        others, self.helpers = self.helpers, self.helpers[:1] if self.chance(1, 4) else []
        if self.helpers:
            self.note("call as an argument of a call")
        given, named = [], False
        for parameter in helper.parameters:
            if parameter.default is None:
                given.append(self.argument(scope, parameter.kind))
            elif self.chance(1, 2):
                value = self.pick(parameter.values)
                named = named or self.chance(1, 2)
                given.append(f"{parameter.name}={value}" if named else value)
            else:
                named = True
        self.helpers = others
        return f"{helper.name}({', '.join(given)})"

    def argument(self, scope, kind):
        if kind == "float":
            return self.number(scope, 1)
        if kind == "complex":
            return self.complex_number(scope, 1)
        if kind[0] == "int":
            inside = [
                name
                for name, (least, most) in scope.ints.items()
                if kind[1] <= least and most <= kind[2]
            ]
            if inside and self.chance(1, 2):
                return self.pick(inside)
            return str(kind[1] + self.choose(kind[2] - kind[1] + 1))
        if kind[0] == "vector":
            same = scope.of_length(kind[1])
            return self.pick(same) if same and self.chance(2, 3) else self.vector(scope, kind[1])
        if kind[0] == "matrix":
            same = [name for name, shape in scope.matrices.items() if shape == kind[1:]]
            turned = [name for name, shape in scope.matrices.items() if shape[::-1] == kind[1:]]
            options = [*same, *same, *(f"{name}.T" for name in turned)]
            options.append(f"np.full({kind[1:]}, {group(self.atom(scope))} + 0.0)")
            return self.pick(options)
        if kind[0] == "record":
            names = [name for name, size in scope.records.items() if size == kind[1]]
            made = f"State({group(self.atom(scope))} + 0.0, {self.fresh_vector(scope, kind[1])})"
            return self.pick([*names, made])
        if kind[0] == "tuple":
            return self.of_kind(scope, kind)
        raise ValueError(kind)


def kind_of(kind):
    """The first word of a kind."""
    return kind if kind is None or isinstance(kind, str) else kind[0]
