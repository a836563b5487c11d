"""`tapegrad.njit`: a numba function that knows its derivatives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numba

from tapegrad.kernels.llvm.pipeline import Checked
from tapegrad.pickling import has_name
from tapegrad.transform import composed, derivatives, frozen, user_rules
from tapegrad.transform.base import Recording, forget_effects
from tapegrad.transform.functions import dotted_name, register
from tapegrad.transform.kinds import is_dispatcher
from tapegrad.transform.protocols import Returns


class CompiledFunction(Recording):
    """A function compiled with `tapegrad.njit`: a numba function with derivatives."""

    rule_vjp: Any = None
    rule_jvp: Any = None
    _rules: Mapping[str, Any] = MappingProxyType({})  # as declared
    verify: bool | None = None  # whether its derivatives check themselves

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compiler.pipeline_class = Checked

    def __reduce__(self) -> Any:
        if self.__module__ != "__main__" and has_name(self):
            return self.__qualname__  # other processes import it, with its rules
        return super().__reduce__()

    def _reduce_states(self) -> dict[str, Any]:
        return {**super()._reduce_states(), "rules": dict(self._rules), "verify": self.verify}

    @classmethod
    def _rebuild(
        cls, rules: dict[str, Any], verify: bool | None, **states: Any
    ) -> CompiledFunction:
        found: CompiledFunction = super()._rebuild(**states)
        for declare, rule in rules.items():
            if declare not in found._rules:  # it may be the existing function of this process
                getattr(found, declare)(rule)
        found.verify = verify
        return found

    def defvjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the reverse rule of this function (a decorator).

        It replaces the derivative generated from the source wherever a differentiated function
        calls this one.

        Parameters
        ----------
        rule
            Takes the arguments, the result and its cotangent; returns a tuple with a cotangent for
            each argument, of its type and shape (0.0 if there is none). Compiled by numba.

        Returns
        -------
        function
            The rule.

        Raises
        ------
        TypeError
            If the rule takes another number of arguments. Derivatives that use it raise
            TransformError if what it returns has the wrong types, ValueError if it has wrong
            shapes.

        Examples
        --------
        >>> import math
        >>> import tapegrad as tg
        >>> @tg.njit
        ... def softplus(x):
        ...     return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
        >>> @softplus.defvjp
        ... def softplus_vjp(x, z, g):
        ...     return (g / (1.0 + math.exp(-x)),)
        >>> @tg.njit
        ... def loss(x):
        ...     return softplus(3.0 * x)
        >>> tg.grad(loss)(0.0)
        1.5
        """
        self.rule_vjp = user_rules.reverse_rule(self, rule)
        if "defjvp" not in self._rules:
            self.rule_jvp = user_rules.forward_from_reverse(self)
        self._rules = {**self._rules, "defvjp": rule}
        return rule

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the forward rule of this function (a decorator).

        Parameters
        ----------
        rule
            Takes the arguments, then a tangent for each of them; returns the tangent of the result,
            of its type and shape. Compiled by numba.

        Returns
        -------
        function
            The rule.

        Raises
        ------
        TypeError
            If the rule takes another number of arguments. Derivatives that use it raise
            TransformError if what it returns has the wrong types, ValueError if it has wrong
            shapes.

        Examples
        --------
        >>> import tapegrad as tg
        >>> @tg.njit
        ... def smallest(x):
        ...     return np.sort(x)[0]
        >>> @smallest.defjvp
        ... def smallest_jvp(x, x_dot):
        ...     return x_dot[np.argmin(x)]
        >>> import numpy as np
        >>> tg.jvp(smallest)(np.array([3.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0]))
        (1.0, 20.0)
        """
        self.rule_jvp = user_rules.forward_rule(self, rule)
        if "defvjp" not in self._rules:
            self.rule_vjp = user_rules.reverse_from_forward(self)
        self._rules = {**self._rules, "defjvp": rule}
        return rule

    def recompile(self) -> None:
        """Recompile it and all its callees with the current values of the names they use.

        Its derivatives are regenerated at their next call.
        """
        for function in frozen.below(self):
            if function is not self:
                function.recompile()
        super().recompile()
        frozen.forget(self)
        forget_effects()

    def adjoint_source(self, *args: Any, argnums: int | tuple[int, ...] = 0) -> str:
        """Return the generated source of the value and gradient.

        Parameters
        ----------
        *args
            Example arguments, for their types.
        argnums
            The arguments to differentiate with respect to.
        """
        numbers, _ = positions(self, argnums, "adjoint_source")
        made = derivatives.pullback(self, numbers, 0, Returns.VALUE | Returns.GRADIENTS)
        return made.source(tuple(map(numba.typeof, args)))

    def tangent_source(self, *args: Any, argnums: int | tuple[int, ...] = 0) -> str:
        """Return the generated source of the value and tangent.

        Parameters
        ----------
        *args
            Example arguments, for their types.
        argnums
            The arguments that have tangents.
        """
        numbers, _ = positions(self, argnums, "tangent_source")
        kinds = tuple(map(numba.typeof, args))
        made = derivatives.pushforward(self, numbers)
        return made.source((*kinds, *(kinds[k] for k in numbers)))


def njit(function: Any = None, *, verify: bool | None = None, **options: Any) -> Any:
    """Compile a function like ``numba.njit``, and make it differentiable.

    Calls run at numba's speed; `tapegrad.grad`, `value_and_grad`, `jvp`, `hvp`, `jacobian` and
    `hessian` of it are compiled functions as well, which other numba functions can call.

    Parameters
    ----------
    function
        The function.
    verify
        Whether a derivative is compared with the function in its first call from Python for each
        tuple of argument types; by default, if the environment variable ``TAPEGRAD_VERIFY`` is set.
        See "Derivatives that check themselves" in the guide to numba functions.
    **options
        Options of ``numba.njit``. Derivatives inherit ``error_model``, ``boundscheck`` and
        ``nogil``.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def power(x, n):
    ...     y = 1.0
    ...     for _ in range(n):
    ...         y *= x
    ...     return y
    >>> tg.value_and_grad(power)(3.0, 4)
    (81.0, 108.0)
    >>> tg.grad(tg.grad(power))(3.0, 4)
    108.0
    """
    if function is None:
        return lambda given: njit(given, verify=verify, **options)
    if is_dispatcher(function):
        options = {**function.targetoptions, **options}
        function = function.py_func
    if not inspect.isfunction(function):
        raise TypeError(
            f"tapegrad.njit: expected a function, got {type(function).__name__}; signatures are "
            "not taken, types are those of the first call"
        )
    if dotted := dotted_name(function):
        raise TypeError(
            f"tapegrad.njit: tg.{dotted} is a function of tapegrad, which compiled functions may "
            f"call; compile a function of your own, such as lambda *args: tg.{dotted}(*args)"
        )
    if numba.config.DISABLE_JIT:  # numba.njit returns the function itself, too
        return function
    register()
    options.pop("nopython", None)
    cache = options.pop("cache", False)
    made = CompiledFunction(function, targetoptions={"nopython": True, **options})
    made.verify = verify
    if cache:
        made.enable_caching()
    return made


def positions(
    function: Any, argnums: int | tuple[int, ...], what: str
) -> tuple[tuple[int, ...], bool]:
    """Return the positions in `argnums`, and whether it is a single integer."""
    single = isinstance(argnums, int)
    given: Any = (argnums,) if single else argnums
    if (
        not isinstance(given, (tuple, list))
        or not given
        or not all(isinstance(number, int) for number in given)
    ):
        raise TypeError(
            f"{what}: argnums is the number of an argument or a tuple of different ones, got "
            f"{argnums!r}"
        )
    count = len(inspect.signature(function.py_func).parameters)
    for number in given:
        if not -count <= number < count:
            raise ValueError(
                f"{what}: argnums {number} is out of range for the {count} arguments of "
                f"{function.py_func.__name__}"
            )
    numbers = tuple(number % count for number in given)
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{what}: argnums {argnums!r} names an argument twice")
    return numbers, single


def gradient(
    function: Any, argnums: int | tuple[int, ...], with_value: bool, what: str, into: bool
) -> Any:
    """Return the gradient of a numba function, optionally preceded by its value."""
    numbers, single = positions(function, argnums, what)
    if into and "out" in inspect.signature(function.py_func).parameters:
        raise TypeError(
            f"{what}: {function.py_func.__name__} has a parameter named out; rename it, or call "
            f"tg.{what} without out"
        )
    returns = Returns.GRADIENT if single else Returns.GRADIENTS
    returns |= Returns.VALUE if with_value else Returns(0)
    return derivatives.pullback(function, numbers, 0, returns, into)


def value_alone(function: Any) -> Any:
    """Return a numba function that computes the same, with loops as derivatives have them.

    Array expressions are fused, and loops over elements use vector math.
    """
    return derivatives.pullback(function, (), 0, Returns.VALUE)


def pushforward(function: Any, argnums: int | tuple[int, ...]) -> Any:
    """Return the value and tangent of a numba function."""
    return derivatives.pushforward(function, positions(function, argnums, "jvp")[0])


def hessian_product(function: Any, argnums: int) -> Any:
    """Return the Hessian of a numba function times a vector."""
    if not isinstance(argnums, int):
        raise TypeError("hvp: argnums of a compiled function must be one integer")
    return composed.hessian_product(function, positions(function, argnums, "hvp")[0][0])


def jacobian(function: Any, argnums: int | tuple[int, ...]) -> Any:
    """Return the Jacobian of a numba function."""
    return composed.jacobian(function, *positions(function, argnums, "jacobian"))
