"""Messages of failed checks: the argument, the numbers, the cause and the remedy."""

from __future__ import annotations

import inspect
from typing import Any

from tapegrad.transform.cache.fingerprint import Fingerprint
from tapegrad.transform.functions import stop_gradient

_TITLES = {
    "Pullback": "gradient",
    "Pushforward": "tangent",
    "Jacobian": "Jacobian",
    "HessianProduct": "Hessian product",
}


class Blame:
    """The messages about a derivative.

    Attributes
    ----------
    rules
        Descriptions of the user rules that it may use.
    stops
        Whether the function uses `stop_gradient`, so that difference quotients may differ from its
        derivative.
    """

    def __init__(self, claim: Any) -> None:
        self.claim = claim
        self.name = claim.derivative.base.py_func.__name__
        self.title = _TITLES[type(claim.derivative).__name__]
        self.rules: list[str] = []
        self.own_rule = False
        self.stops = False
        root = claim.function
        while hasattr(root, "_tapegrad_recipe"):
            root = root.base
        self._note(root)
        self.own_rule = bool(self.rules)
        for value in claim.args.values:
            self._note(value)
        for function in Fingerprint(root).functions:
            for value in _named(function):
                self._note(value)

    def _note(self, value: Any) -> None:
        """Note rules and the use of `stop_gradient` in a value that the function names."""
        self.stops |= value is stop_gradient
        for kind in ("vjp", "jvp"):
            rule = getattr(value, f"rule_{kind}", None)
            if rule is None or hasattr(rule, "refusal"):
                continue  # it follows from the rule of the other mode
            declared = rule.declared.py_func
            code = declared.__code__
            text = (
                f"{declared.__name__} (def{kind} of {value.py_func.__name__}, "
                f'File "{code.co_filename}", line {code.co_firstlineno})'
            )
            if text not in self.rules:
                self.rules.append(text)

    def arguments(self, numbers: tuple[int, ...]) -> str:
        """Return the description of the arguments."""
        names = self.claim.args.names
        shown = [f"{number} ({names[number]})" for number in numbers]
        return f"argument{'s' if len(shown) > 1 else ''} {' and '.join(shown)}"

    def of_derivative(
        self,
        numbers: tuple[int, ...],
        is_number: bool,
        found: dict[str, float],
        quotients: list[tuple[float, float]],
    ) -> str:
        """Return the text about a wrong derivative, a number or along a direction."""
        rows = {label: f"{value:.10g}" for label, value in found.items()}
        for value, error in quotients:
            rows["difference quotient"] = f"{value:.10g} (error below {error:.1g})"
        width = max(map(len, rows))
        table = "\n".join(f"  {label:{width}}  {number}" for label, number in rows.items())
        along = "" if is_number else "along a random direction "
        return self._text(f"by {self.arguments(numbers)} is wrong; {along}it is\n{table}")

    def of_shape(self, numbers: tuple[int, ...]) -> str:
        """Return the text about a derivative with a wrong shape."""
        return self._text(f"by {self.arguments(numbers)} has not the shape of the argument")

    def of_value(self, found: Any, expected: Any) -> str:
        """Return the text about a wrong value."""
        return self._text(f"comes with the value {found!r}; the function returns {expected!r}")

    def of_argument(self, number: int) -> str:
        """Return the text about an argument with wrong contents after the call."""
        left = "as the function leaves it" if self.claim.writes else "as it was"
        return self._text(f"does not leave {self.arguments((number,))} {left}")

    def of_tangent(self) -> str:
        """Return the text about a tangent or cotangent that is changed."""
        return self._text("writes into a tangent or cotangent that it is given")

    def of_chance(self) -> str:
        """Return the text about a derivative that differs in a second call."""
        return self._text("is not the same in a second call with the same arguments")

    def _text(self, what: str) -> str:
        title = f"the {self.title} of {self.name}"
        if self.rules:
            listed = "\n".join(f"  {rule}" for rule in self.rules)
            whose = (
                f"{self.name} has a rule of its own, which is wrong"
                if self.own_rule
                else "It uses rules that were declared for functions; one of them is wrong"
            )
            return (
                f"{title} {what}\n{whose}:\n{listed}\nCorrect it. If it differs from the "
                "derivative on purpose, leave out the check (tg.njit(verify=False))."
            )
        return (
            f"{title} {what}\nThis is a defect of tapegrad; please report it with the function. "
            "Until it is mended, declare a rule (defvjp, defjvp) for the part that is wrong, as a "
            "function of its own, or pass that part through tg.stop_gradient if it is a constant."
        )


def _named(function: Any) -> list[Any]:
    """Return the values that a Python function names, including attributes of modules."""
    closure = inspect.getclosurevars(function)
    found = []
    for value in [*closure.globals.values(), *closure.nonlocals.values()]:
        found.append(value)
        if inspect.ismodule(value) and value.__name__.split(".")[0] not in ("numpy", "math"):
            names = function.__code__.co_names
            found += [getattr(value, name) for name in names if hasattr(value, name)]
    return found
