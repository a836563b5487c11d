"""Products of Jacobians and Hessians with vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.autograd.tangents import tangents_of
from tapegrad.calls import Argnums, Call, Transformed, as_argnums, check_function, numbers_of, plain
from tapegrad.cuda.array import zeros
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.detached import note_independent
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import is_recording
from tapegrad.func import recorded
from tapegrad.func.common import (
    checked_tangent,
    compiler_of,
    cotangents_like,
    cotangents_of_inputs,
    has_no_history,
    outputs_of,
    scalar_of,
)
from tapegrad.ops.table.op import shape_of
from tapegrad.pytrees import holds_tensor, structure, tree


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return the value of `f` and a function that maps its cotangents to those of `primals`.

    Parameters
    ----------
    f
        Function of arrays or pytrees.
    *primals
        Arguments of `f`, with respect to which it is differentiated.
    has_aux
        Whether `f` returns a pair (value, anything); the result then has a third item.

    Returns
    -------
    value
        The result of `f`.
    pullback : callable
        Takes a cotangent with the structure of the value and returns a tuple with one cotangent per
        primal. It may be called any number of times.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> value, pullback = tg.vjp(tg.sin, np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    (array([1., 0.]),)
    """
    check_function(f, "vjp")
    if is_recording(primals):
        return recorded.vjp(f, primals, has_aux)
    call = Call(f, primals, tuple(range(len(primals))), "vjp", has_aux)
    outputs, build = outputs_of(call)
    if has_no_history(call, outputs):
        note_independent("vjp")
    nested = call.nested()

    def pullback(cotangent: Any) -> Any:
        cotangents = cotangents_like(outputs, call.result, cotangent)
        again = nested or (MODE.recording and any(g._own is not None for g in cotangents))
        found = cotangents_of_inputs(
            call, outputs, cotangents, retain_graph=True, create_graph=again
        )
        return call.like_inputs(found, is_plain and not holds_tensor([cotangent]))

    is_plain = call.is_plain
    value = build([call.value(output) for output in outputs])
    return (value, pullback, call.auxiliary()) if has_aux else (value, pullback)


def jvp(f: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that computes the value of `f` and its directional derivative.

    A compiled numba function is differentiated in forward mode, at a small multiple of its own
    cost. A function of tensors is called once, and tangents are propagated through its records.

    Parameters
    ----------
    f
        Function of arrays; its result is an array or a pytree of arrays (if compiled, a tuple).
    argnums
        Positions of the arguments that have tangents.

    Returns
    -------
    callable
        Takes the arguments of `f` followed by one tangent per number in `argnums`, with the shape
        of its argument; returns (value, tangent of the value).

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.jvp(lambda x: x**2)(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    (array([1., 4.]), array([ 2., 40.]))
    """
    argnums = as_argnums(argnums, "jvp")
    if source := compiler_of(f, "jvp"):
        return source.pushforward(f, argnums)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        primals, tangents = args[: len(args) - len(numbers)], args[len(args) - len(numbers) :]
        call = Call(f, primals, argnums, "jvp", kwargs=kwargs)
        call.is_plain &= not holds_tensor(tangents)
        outputs, build = outputs_of(call)
        call.nested()
        dots = _pushforward(call, outputs, [primals[number] for number in numbers], tangents)
        values = [call.value(output) for output in outputs]
        return build(values), build([plain(p) if call.is_plain else p for p in dots])

    return Transformed(wrapped, jvp, f, argnums, recorded=recorded.jvp)


def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return the value of `f` and a function that maps tangents of `primals` to its tangent.

    The function is called once, whatever the number of tangents.

    Parameters
    ----------
    f
        Function of arrays or pytrees.
    *primals
        Arguments of `f`, with respect to which it is differentiated.
    has_aux
        Whether `f` returns a pair (value, anything); the result then has a third item.

    Returns
    -------
    value
        The result of `f`.
    pushforward : callable
        Takes one tangent per primal, with its structure and shapes, and returns the tangent of the
        value. It may be called any number of times.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> value, pushforward = tg.linearize(lambda x: x.sum() * x, np.array([1.0, 2.0]))
    >>> pushforward(np.array([1.0, 0.0])), pushforward(np.array([0.0, 1.0]))
    (array([4., 2.]), array([1., 5.]))
    """
    check_function(f, "linearize")
    if is_recording(primals):
        return recorded.linearize(f, primals, has_aux)
    call = Call(f, primals, tuple(range(len(primals))), "linearize", has_aux)
    outputs, build = outputs_of(call)
    if has_no_history(call, outputs):
        note_independent("linearize")
    call.nested()
    is_plain = call.is_plain

    def pushforward(*tangents: Any) -> Any:
        dots = _pushforward(call, outputs, primals, tangents)
        return build([plain(t) if is_plain and not holds_tensor(tangents) else t for t in dots])

    value = build([call.value(output) for output in outputs])
    return (value, pushforward, call.auxiliary()) if has_aux else (value, pushforward)


def _pushforward(
    call: Call, outputs: list[Tensor], primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Tensor]:
    """Return the tangents of outputs for tangents of primals, after checking these."""
    given = [leaf for tangent in tangents for leaf in tree(tangent, f"{call.name}: a tangent")[0]]
    for found, wanted in ((len(tangents), len(primals)), (len(given), len(call.inputs))):
        if found != wanted:
            raise ValueError(
                f"{call.name}: got {found} tangents for {wanted} differentiated arguments"
            )
    for primal, tangent in zip(primals, tangents, strict=True):
        if structure(tangent) != structure(primal):
            raise ValueError(f"{call.name}: a tangent has another structure than its argument")
    pairs = zip(given, call.inputs, strict=True)
    directions = [checked_tangent(t, tensor, call.name) for t, tensor in pairs]
    create_graph = call.is_nested or (
        MODE.recording and any(t._own is not None for t in directions)
    )
    dots: list[Tensor] = []
    rows = tangents_of(outputs, call.inputs, directions, create_graph)
    for output, row in zip(outputs, rows, strict=True):
        t = wrap(zeros(output.shape, output.dtype, output.device)) if row is None else row
        # the same result may be returned twice
        dots.append(t.clone() if any(t is other for other in dots) else t)
    return dots


_OF_SCIPY = (
    "the vector is the last argument; SciPy gives it second: hessp=lambda x, p, *args: "
    "tg.hvp(f)(x, *args, p)"
)


def _leaves_like(vector: Any, argument: Any) -> list[Any]:
    """Return the parts of a vector, after checking that it is like the argument of `hvp`."""
    given, _ = tree(vector, "hvp: the vector")
    wanted, _ = tree(argument, "hvp: the argument")
    if len(given) != len(wanted):
        raise ValueError(
            f"hvp: the vector has {len(given)} parts, the argument {len(wanted)}; {_OF_SCIPY}"
        )
    if structure(vector) != structure(argument):
        raise ValueError(f"hvp: the vector has another structure than the argument; {_OF_SCIPY}")
    for v, x in zip(given, wanted, strict=True):
        if shape_of(v) != shape_of(x):
            raise ValueError(
                f"hvp: the vector has shape {list(shape_of(v))}, and the argument "
                f"{list(shape_of(x))}; {_OF_SCIPY}"
            )
    return given


def hvp(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """Return a function that computes the product of the Hessian of `f` with a vector.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Position of the differentiated argument.

    Returns
    -------
    callable
        Takes the arguments of `f` followed by the vector, which has the structure of the argument;
        returns the product, with the same structure. It costs a few times as much as `f`.
        Arguments given by name go to `f`. SciPy gives the vector second, before its `args`: give
        those to `f` itself, with a lambda or `functools.partial`.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.hvp(lambda x: tg.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    array([ 6., 12.])
    """
    argnums = as_argnums(argnums, "hvp")
    if source := compiler_of(f, "hvp"):
        return source.hessian_product(f, argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        *primals, vector = args
        numbers_of(argnums, len(primals), "hvp")
        given = _leaves_like(vector, primals[argnums])
        call = Call(f, tuple(primals), argnums, "hvp", kwargs=kwargs)
        call.is_plain &= not holds_tensor([vector])
        value = scalar_of(call.result, "hvp")
        if has_no_history(call, [value]):
            note_independent("hvp")
        nested = call.nested()
        gradients = cotangents_of_inputs(call, [value], create_graph=True)
        vectors = [as_tensor(v) for v in given]
        again = nested or (MODE.recording and any(v._own is not None for v in vectors))
        return call.like_inputs(cotangents_of_inputs(call, gradients, vectors, create_graph=again))

    return Transformed(wrapped, hvp, f, argnums, recorded=recorded.hvp)
