"""Tuples with arrays that are handed on and written, and derivatives that are taken on the way."""

from .guards import Guards
from .scope import group


class Structures(Guards):
    """Writes values that hold arrays, and calls of derivatives."""

    def of_kind(self, scope, kind):
        """A value of the kind of a tuple, whose arrays may be those of the scope."""
        if kind == "float":
            return f"{group(self.number(scope, 1))} + 0.0"
        if kind[0] == "tuple":
            return f"({', '.join(self.of_kind(scope, item) for item in kind[1])})"
        if kind[0] == "record":
            return (
                f"State({self.of_kind(scope, 'float')}, {self.of_kind(scope, ('vector', kind[1]))})"
            )
        same = scope.of_length(kind[1])
        return self.pick(same) if same and self.chance(3, 4) else self.fresh_vector(scope, kind[1])

    def takers_of_structures(self):
        """Helpers that take a tuple with an array and may be called here."""
        helpers = self.callable_helpers(*[helper.result for helper in self.helpers])
        return [h for h in helpers if any(p.kind[0] in ("tuple", "record") for p in h.parameters)]

    def differentiable_helpers(self):
        """Helpers whose derivative may be called here: of a number, and not many times."""
        return [
            helper
            for helper in self.callable_helpers("float")
            if helper.steps * self.trips <= 40
            and helper.parameters[0].kind == "float"
            and all(parameter.default is None for parameter in helper.parameters)
        ]

    def tuple_to_helper(self, scope):
        """A tuple with an array goes to a helper that may write to the array, which is read."""
        helper = self.pick(self.takers_of_structures())
        lines, given = [], []
        for parameter in helper.parameters:
            if parameter.kind[0] not in ("tuple", "record"):
                given.append(self.argument(scope, parameter.kind))
                continue
            name = self.name("t")
            lines.append(f"{name} = {self.of_kind(scope, parameter.kind)}")
            scope.add(name, parameter.kind)
            given.append(name)
        text = f"{helper.name}({', '.join(given)})"
        if helper.result is None or self.chance(1, 6):
            return [*lines, text]
        result = self.name("r")
        scope.add(result, helper.result)
        if helper.result[0] == "vector" and self.chance(1, 3):
            index = self.index(scope, None, helper.result[1])
            return [*lines, f"{result} = {text}", f"{result}[{index}] *= {self.small(scope, 1)}"]
        return [*lines, f"{result} = {text}"]

    def array_packed(self, scope):
        """An array in a tuple in a tuple, written through it."""
        size, name = self.length, self.name("t")
        kind = ("tuple", ("float", ("tuple", (("vector", size), "float"))))
        lines = [f"{name} = {self.of_kind(scope, kind)}"]
        scope.add(name, kind)
        index = self.index(scope, None, size)
        return [*lines, f"{name}[1][0][{index}] {self.pick(['=', '+='])} {self.small(scope, 1)}"]

    def derivative_call(self, scope):
        """The gradient or the tangent of a helper, as a number of the program."""
        helper = self.pick(self.differentiable_helpers())
        others, self.helpers = self.helpers, []
        given = []
        for parameter in helper.parameters:
            text = self.argument(scope, parameter.kind)
            # derivatives write to copies only
            arrays = parameter.kind[0] in ("vector", "matrix")
            given.append(f"{group(text)}.copy()" if arrays else text)
        self.helpers = others
        u = self.name("u")
        arrays = len(given) > 1 and helper.parameters[1].kind[0] == "vector"
        kind = self.weighted(number=4, array=2 * arrays, value=2, tangent=2)
        given = ", ".join(given)
        maker = {"number": "grad", "array": "grad", "value": "value_and_grad", "tangent": "jvp"}
        made = f"{helper.name}_{kind}"
        options = ", 1" if kind == "array" else ""
        self.derived[made] = f"{made} = tg.{maker[kind]}({helper.name}{options})"
        lines = {
            "number": [f"{u} = np.tanh({made}({given}))"],
            "array": [f"{u} = np.tanh(np.sum({made}({given})))"],
            "value": [f"{u}, {u}_1 = {made}({given})", f"{u} = np.tanh({u} + {u}_1)"],
            "tangent": [
                f"{u}, {u}_1 = {made}({given}, {self.small(scope, 1)})",
                f"{u} = np.tanh({u} - {u}_1)",
            ],
        }[kind]
        scope.floats.append(u)
        return lines
