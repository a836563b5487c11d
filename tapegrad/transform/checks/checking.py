"""Derivatives that check themselves when they are called for the first time.

With ``tapegrad.njit(verify=True)``, or ``TAPEGRAD_VERIFY=1`` for everything, the first call of a
derivative from Python for some types of arguments compares it, along random directions, with the
other mode and with difference quotients of the function. The value, and the arguments after the
call, are compared with those of the function.

The product ``u . J v``, for weights ``u`` of the results and a direction ``v`` of one argument, is
the same number in both modes: reverse mode computes ``(u J) . v``, forward mode ``u . (J v)`` (the
dot product test, J. F. Claerbout, Earth Soundings Analysis, 1992).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tapegrad.transform.base import Derivative
from tapegrad.transform.checks import probes
from tapegrad.transform.checks.blame import Blame
from tapegrad.transform.checks.claims import Product, ShapeError, claim_of
from tapegrad.transform.errors import VerificationError

_LADDER = 5  # number of step sizes of the quotients, each an eighth of the previous one
_inside = threading.local()


def is_on(derivative: Any) -> bool:
    """Whether the derivatives of a function are to be checked."""
    root = derivative
    while isinstance(root, Derivative):
        root = root.base
    chosen = getattr(root, "verify", None)
    if chosen is None:
        return os.environ.get("TAPEGRAD_VERIFY", "0") not in ("", "0")
    return bool(chosen)


def passes(derivative: Any, args: tuple[Any, ...]) -> bool:
    """Check a derivative that is called for the first time with arguments of some types.

    Parameters
    ----------
    derivative
        The derivative.
    args
        The arguments as numba passes them: omitted ones are instances of ``OmittedArg``.

    Returns
    -------
    bool
        Whether calls need no further check. False if the function or the derivative raises for
        these arguments, and inside a check.

    Raises
    ------
    VerificationError
        If it is not the derivative of its function.
    """
    if not is_on(derivative) and not derivative.is_doubted:
        return True
    if getattr(_inside, "check", False):
        return False
    claim = claim_of(derivative, args)
    if claim is None:
        return True
    for inner, count in claim.builds_on:
        if not inner.enter(args[:count]):
            return False
    state = probes.random_state()
    _inside.check = True
    try:
        with np.errstate(all="ignore"):
            return Check(claim, state).run()
    finally:
        _inside.check = False
        probes.restore(state)


class Check:
    """The check of one derivative at one point."""

    def __init__(self, claim: Any, state: list[bytes]) -> None:
        self.claim = claim
        self.state = claim.state = state
        self.draw = np.random.default_rng(0)
        self.blame = Blame(claim)

    def run(self) -> bool:
        """Return whether the comparison was possible; raise an error if the derivative is wrong."""
        claim = self.claim
        values = claim.args.values
        try:
            self.value, left = claim.call(claim.function, values, [])
            drawn = probes.random_state()
            again, _ = claim.call(claim.function, values, [])
            found, left_behind = claim.first()
            as_many = probes.random_state() == drawn
            second, _ = claim.first()
        except Exception:
            return False  # the call itself raises it again
        if not _same(self.value, again, 0.0) or not as_many:
            return True  # not a function of its arguments, or draws different random numbers
        self.result = probes.vector(self.value)
        self.single = _is_single([*values, *claim.extra, self.value])
        value = claim.value(found)
        if value is not None and not self.close(value, self.value, lambda value, left: value):
            raise VerificationError(self.blame.of_value(value, self.value))
        if not isinstance(claim.function, Derivative):  # those may work on copies
            self.compare_arguments(left if claim.writes else values, left_behind)
        if not _same(found, second, 1e-3 if self.single else 1e-9):
            raise VerificationError(self.blame.of_chance())
        size = self.result.size
        scales = np.maximum(np.abs(self.result), 0.01 * np.abs(self.result).max(initial=0.0))
        scales = np.where(np.isfinite(scales) & (scales > 1e-200), scales, 1.0)
        self.u = probes.weights(size, self.draw) / scales * np.isfinite(self.result)
        if size == 0 or not self.u.any():
            return True
        ways = list(claim.others(self.value))
        steps = {k: claim.direction(k, self.draw) for k in claim.numbers}
        for number, step in steps.items():
            self.compare((number,), {number: step}, ways)
        if len(steps) > 1:
            self.compare(claim.numbers, steps, ways)
        return True

    def compare_arguments(self, expected: list[Any], found: list[Any]) -> None:
        own = len(self.claim.args.values)
        for number in range(own):
            if not self.close(found[number], expected[number], lambda _, left, k=number: left[k]):
                raise VerificationError(self.blame.of_argument(number))
        for given, after in zip(self.claim.extra, found[own:], strict=True):
            if not _same(after, given, 0.0):
                raise VerificationError(self.blame.of_tangent())

    def close(self, found: Any, expected: Any, choose: Callable[..., Any]) -> bool:
        """Whether a value from the derivative equals that of the function up to rounding.

        Larger differences are allowed if the function is that sensitive to the last digits of its
        arguments. `choose` selects the compared value from the result and the arguments.
        """
        precision = 1e-3 if self.single else 1e-9
        if _same(found, expected, precision):
            return True
        if not probes.is_like(found, expected):
            return False
        ours, theirs = probes.vector(found, expected), probes.vector(expected)
        allowed = precision * np.abs(theirs)
        for near in self.neighbours():
            try:
                value = choose(*self.claim.call(self.claim.function, near, []))
            except Exception:
                continue
            other = probes.vector(value)
            if other.shape == allowed.shape:
                change = np.abs(other - theirs)
                allowed += np.where(np.isfinite(change), 50.0 * change, 0.0)
        finite = np.isfinite(theirs)
        return bool(
            np.array_equal(finite, np.isfinite(ours))
            and (np.abs(ours[finite] - theirs[finite]) <= allowed[finite]).all()
            and _same(_whole(found), _whole(expected), 0.0)
        )

    def neighbours(self) -> Iterator[list[Any]]:
        """Yield arguments that differ from those of the call in their last digits."""
        draw = np.random.default_rng(1)
        size = 8 * float(np.finfo(np.float32 if self.single else np.float64).eps)
        values = self.claim.args.values
        for _ in range(3):
            shift = {k: size * probes.direction(value, draw) for k, value in enumerate(values)}
            yield self.claim.args.moved(shift)

    def compare(
        self, numbers: tuple[int, ...], steps: dict[int, np.ndarray], ways: list[tuple[str, Any]]
    ) -> None:
        """Compare the product along one direction."""
        values = self.claim.args.values
        try:
            own = self.claim.product(values, self.u, steps)
        except ShapeError:
            raise VerificationError(self.blame.of_shape(numbers)) from None
        found = {}
        for label, way in ways:
            try:
                found[label] = (way, way(values, self.u, steps))
            except Exception:  # refused or defective, which its own call reports
                continue
        quotients = list(self.quotients(steps, own))
        if any(np.isfinite(p.value) != np.isfinite(own.value) for _, p in found.values()):
            is_wrong = True  # one of two ways is
        elif not np.isfinite(own.value):
            is_wrong = False
        else:
            margin, right = 0.0, not quotients or _confirmed(own, quotients, 0.0)
            if not right:
                ways_found = [(self.claim.product, own), *found.values()]
                margin = min(self.noise(way, steps, product) for way, product in ways_found)
                right = _confirmed(own, quotients, margin)
            differs = [
                product
                for way, product in found.values()
                if not self.agree(own, product, steps, way)
            ]
            if self.blame.stops:
                is_wrong = bool(differs)
            elif quotients and right:  # they tell which of two ways is wrong
                is_wrong = any(_confirmed(product, quotients, 0.0) for product in differs)
            else:
                is_wrong = bool(differs) or not right
        if is_wrong:
            ways_shown = {f"{self.claim.mode} (called)": own}
            ways_shown.update((label, product) for label, (_, product) in found.items())
            raise VerificationError(self.describe(numbers, steps, ways_shown, quotients))

    def describe(
        self,
        numbers: tuple[int, ...],
        steps: dict[int, np.ndarray],
        found: dict[str, Product],
        quotients: list[tuple[float, float]],
    ) -> str:
        """Return the text about a wrong product, or the derivative if both sides are numbers."""
        step = steps[numbers[0]]
        is_number = self.u.size == 1 and len(numbers) == 1 and step.size == 1
        unit = float(self.u[0] * step[0]) if is_number else 1.0
        return self.blame.of_derivative(
            numbers,
            is_number,
            {label: product.value / unit for label, product in found.items()},
            [(quotient / unit, abs(error / unit)) for quotient, error in quotients[:1]],
        )

    def agree(self, own: Product, other: Product, steps: Any, way: Any) -> bool:
        """Whether two ways to compute the same finite number agree."""
        gap = abs(own.value - other.value)
        allowed = (1e-2 if self.single else 1e-6) * max(own.size, other.size) + self.floor()
        if gap <= allowed:
            return True
        noise = min(self.noise(self.claim.product, steps, own), self.noise(way, steps, other))
        return gap <= allowed + noise

    def floor(self) -> float:
        """Return the error allowed because of the size of the value."""
        known = np.where(self.u != 0.0, self.result, 0.0)
        return (1e-5 if self.single else 1e-12) * float(np.abs(self.u * known).sum())

    def noise(self, way: Any, steps: dict[int, np.ndarray], own: Product) -> float:
        """Return how much a product changes if the arguments change in their last digits."""
        largest = 0.0
        for near in self.neighbours():
            try:
                change = abs(way(near, self.u, steps).value - own.value)
            except Exception:
                continue
            if np.isfinite(change):
                largest = max(largest, change)
        return 50.0 * largest

    def quotients(
        self, steps: dict[int, np.ndarray], own: Product
    ) -> Iterator[tuple[float, float]]:
        """Yield converged difference quotients, each with an error bound.

        They are central and extrapolated from two step sizes. At a kink, the one-sided quotients
        differ for all step sizes, and none is returned.
        """
        eps = float(np.finfo(np.float32 if self.single else np.float64).eps)
        own_size = own.size if np.isfinite(own.size) else 0.0
        known = self.u != 0.0
        middle = np.where(known, self.result, 0.0)
        size = float(np.abs(self.u * middle).sum())
        h = 0.03 if self.single else 1e-3
        before = None
        for _ in range(2 if self.single else _LADDER):
            sides = []
            for signed in (h, -h):
                moved = {k: signed * step for k, step in steps.items()}
                try:
                    value, _ = self.claim.call(
                        self.claim.function, self.claim.args.moved(moved), []
                    )
                except Exception:
                    break
                numbers = probes.vector(value)
                if numbers.size != self.u.size:
                    break
                change = self.u * (np.where(known, numbers, 0.0) - middle)
                sides.append(float(change.sum()) / signed)
            if len(sides) == 2 and np.isfinite(sides).all():
                central, gap = sum(sides) / 2.0, abs(sides[0] - sides[1])
                rounding = 50.0 * eps * size / h
                if before is not None:
                    change = abs(central - before[0])
                    scale = max(abs(central), abs(before[0]), own_size)
                    limit = 1e-3 * scale + rounding
                    if change <= limit and gap <= 0.3 * before[1] + limit:
                        error = change + rounding + 1e-6 * scale
                        yield (64.0 * central - before[0]) / 63.0, error
                before = (central, gap)
            else:
                before = None
            h /= 8.0


def _confirmed(product: Product, quotients: list[tuple[float, float]], margin: float) -> bool:
    """Whether a difference quotient confirms a product."""
    return any(abs(quotient - product.value) <= error + margin for quotient, error in quotients)


def _whole(value: Any) -> tuple[Any, ...]:
    """Return the parts of a value that are not real."""
    return tuple(part for part in probes.parts(value) if not probes.is_real(part))


def _is_single(values: list[Any]) -> bool:
    """Whether any number is of single precision."""
    parts = [part for value in values for part in probes.parts(value)]
    single = (np.float32, np.complex64)
    return any(probes.is_real(part) and np.asarray(part).dtype in single for part in parts)


def _same(one: Any, other: Any, precision: float) -> bool:
    """Whether two values are equal up to rounding."""
    ones, others = probes.parts(one), probes.parts(other)
    if len(ones) != len(others):
        return False
    for x, y in zip(ones, others, strict=True):
        if not isinstance(x, (np.ndarray, np.generic, int, float, complex)):
            continue
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape:
            return False
        if x.dtype.kind not in "fc":
            if x.dtype.kind in "iub" and not np.array_equal(x, y):
                return False
            continue
        known = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return False
        if not np.array_equal(x[~known & ~np.isnan(x)], y[~known & ~np.isnan(y)]):
            return False
        size = np.abs(x[known]).max(initial=0.0)
        if (np.abs(x[known] - y[known]) > precision * size).any():
            return False
    return True


Derivative.check = staticmethod(passes)
