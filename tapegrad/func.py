"""Transforms of functions: gradients, Jacobians, Hessians as functions.

Arguments and results may be arrays, tensors, numbers, or nested containers of these (pytrees, which
require optree). Called with arrays and numbers, a transform returns arrays and NumPy scalars. It
returns tensors if an argument contains a tensor, or if the result has a history, as inside another
transform.

Applied to a compiled numba function (`tapegrad.njit`, ``numba.njit``), a transform generates a
compiled function by source transformation; it takes and returns plain numbers and arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.autograd.api import grad as autograd_grad
from tapegrad.autograd.tangents import propagate_tangents
from tapegrad.calls import Argnums, Call, Transformed, plain
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.detached import note_independent
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.pytrees import holds_tensor, structure, tree


def _source(f: Any, name: str, has_aux: bool = False) -> Any:
    """Return the module that transforms source, or None if `f` is not compiled."""
    if not (hasattr(f, "py_func") and hasattr(f, "targetoptions")):
        return None
    if has_aux:
        raise TypeError(
            f"{name}: has_aux is for functions of tensors; a compiled function has no other "
            "results than those that are differentiated"
        )
    import tapegrad.transform.function as transform

    return transform


def _scalar(result: Any, name: str) -> Tensor:
    if not isinstance(result, Tensor):
        if isinstance(result, (float, int, np.ndarray, np.generic)):
            result = as_tensor(result)
        else:
            raise TypeError(
                f"{name}: the function returned a {type(result).__name__}; expected a scalar tensor"
            )
    if result.size != 1:
        raise ValueError(
            f"{name}: the function returned shape {list(result.shape)}; expected a scalar "
            "(use jacobian or vjp for other results)"
        )
    return result


def _gradients(call: Call, outputs: Any, cotangents: Any = None, **options: Any) -> list[Tensor]:
    if all(output._own is None for output in outputs):
        return [wrap(np.zeros(t.shape, t.dtype)) for t in call.inputs]
    return list[Any](
        autograd_grad(
            [o for o in outputs if o._own is not None],
            call.inputs,
            None
            if cotangents is None
            else [g for o, g in zip(outputs, cotangents, strict=True) if o._own is not None],
            materialize_grads=True,
            **options,
        )
    )


def _tangent(given: Any, tensor: Tensor) -> Tensor:
    """Return the tangent given for an argument as a tensor, after checking it."""
    t = as_tensor(given)
    if t.dtype.kind == "c" and tensor.dtype.kind != "c":
        raise TypeError(
            f"jvp: a tangent has dtype {t.dtype}, and its argument {tensor.dtype}; a real argument "
            "has real tangents"
        )
    if t.shape != tensor.shape:
        raise ValueError(
            f"jvp: a tangent has shape {list(t.shape)}, and its argument {list(tensor.shape)}"
        )
    return t


def value_and_grad(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the value and the gradient of `f`.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Positions of the differentiated arguments; for a sequence, the gradient is a tuple.
    has_aux
        Whether `f` returns a pair (scalar, anything); the value is then that pair.

    Returns
    -------
    callable
        Takes the arguments of `f` and returns (value, gradient). A gradient has the structure,
        shapes and dtypes of its argument.

    Raises
    ------
    TypeError, ValueError
        When called, if a differentiated argument is not floating point or the result not a scalar.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> value, gradient = tg.value_and_grad(lambda x: tg.sum(x**2))(np.array([1.0, 2.0]))
    >>> value, gradient
    (np.float64(5.0), array([2., 4.]))
    """
    if source := _source(f, "value_and_grad", has_aux):
        return source.gradient(f, argnums, True, "value_and_grad")
    both = _value_and_grad(f, argnums, has_aux, "value_and_grad")
    return Transformed(both, value_and_grad, f, argnums, has_aux)


def _value_and_grad(
    f: Callable[..., Any], argnums: Argnums, has_aux: bool, name: str
) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Call(f, args, argnums, name, has_aux, kwargs)
        value = _scalar(call.result, name)
        if value._own is None and not call.has_inner:  # a derivative may well be constant
            note_independent(name)
        nested = call.nested()
        gradients = _gradients(call, [value], create_graph=nested)
        found = call.value(value)
        return ((found, call.auxiliary()) if has_aux else found), call.like_inputs(gradients)

    return wrapped


def grad(f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradient of `f`.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Positions of the differentiated arguments; for a sequence, the gradient is a tuple.
    has_aux
        Whether `f` returns a pair (scalar, anything); the result is then (gradient, anything).

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.grad(lambda x: tg.sum(x**3))(np.array([1.0, 2.0]))
    array([ 3., 12.])
    >>> tg.grad(tg.grad(tg.sin))(0.5) == -np.sin(0.5)
    np.True_
    """
    if source := _source(f, "grad", has_aux):
        return source.gradient(f, argnums, False, "grad")
    both = _value_and_grad(f, argnums, has_aux, "grad")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return Transformed(wrapped, grad, f, argnums, has_aux)


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
    call = Call(f, primals, tuple(range(len(primals))), "vjp", has_aux)
    leaves, build = tree(call.result, "vjp: the result")
    outputs = [as_tensor(leaf) for leaf in leaves]
    if all(output._own is None for output in outputs) and not call.has_inner:
        note_independent("vjp")
    nested = call.nested()

    def pullback(cotangent: Any) -> Any:
        given, _ = tree(cotangent, "vjp: the cotangent")
        if len(given) != len(outputs):
            raise ValueError(f"vjp: got {len(given)} cotangents for {len(outputs)} results")
        if structure(cotangent) != structure(call.result):
            raise ValueError("vjp: the cotangent has another structure than the result")
        cotangents = [as_tensor(g) for g in given]
        again = nested or (MODE.recording and any(g._own is not None for g in cotangents))
        found = _gradients(call, outputs, cotangents, retain_graph=True, create_graph=again)
        return call.like_inputs(found, is_plain and not holds_tensor(given))

    is_plain = call.is_plain
    value = build([call.value(output) for output in outputs])
    return (value, pullback, call.auxiliary()) if has_aux else (value, pullback)


def jacobian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f`.

    Reverse sweeps compute it row by row, or column by column where the input is smaller than the
    output: the cotangent of the input is linear in the cotangent of the output, so reverse sweeps
    over the recorded reverse pass give the columns.

    Parameters
    ----------
    f
        Function of arrays or pytrees; its result is a real array or a pytree of real arrays.
    argnums
        Positions of the differentiated arguments; for a sequence, the result is a tuple.
    has_aux
        Whether `f` returns a pair (array, anything); the returned function then does too.

    Returns
    -------
    callable
        Takes the arguments of `f`; the Jacobian has the shape of the value followed by the shape of
        the argument. For pytrees, the structure of the argument is nested in that of the value.
        With respect to complex arguments, each row is the gradient of one element.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.jacobian(lambda x: x**2)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    if source := _source(f, "jacobian", has_aux):
        return source.jacobian(f, argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Call(f, args, argnums, "jacobian", has_aux, kwargs)
        leaves, build = tree(call.result, "jacobian: the result")
        outputs = [as_tensor(leaf) for leaf in leaves]
        if all(output._own is None for output in outputs) and not call.has_inner:
            note_independent("jacobian")
        nested = call.nested()
        found = build([call.like_inputs(_jacobian(call, output, nested)) for output in outputs])
        return (found, call.auxiliary()) if has_aux else found

    return Transformed(wrapped, jacobian, f, argnums, has_aux)


def _jacobian(call: Call, output: Tensor, nested: bool) -> list[Tensor]:
    """Return the Jacobian of one output with respect to every input."""
    if output.dtype.kind == "c":
        raise TypeError(
            f"jacobian: the function returned numbers of dtype {output.dtype}; the Jacobian is of "
            "real ones: return their parts (real, imag, or tg.view_as_real)"
        )
    if output._own is None:
        return [wrap(np.zeros((*output.shape, *t.shape), t.dtype)) for t in call.inputs]
    is_real = all(t.dtype.kind == "f" for t in call.inputs)
    if is_real and not nested and output.size > 2 * sum(t.size for t in call.inputs):
        if not call.runs_user_code(output._own):  # which may not be linear, or not recorded
            return _columns(call, output)
    return _rows(call, output, nested)


def _rows(call: Call, output: Tensor, nested: bool) -> list[Tensor]:
    """Run one reverse sweep per element of the output."""
    rows: list[list[Tensor]] = []
    for k in range(output.size):
        cotangent = np.zeros(output.size, output.dtype)
        cotangent[k] = 1.0
        seed = wrap(cotangent.reshape(output.shape))
        rows.append(_gradients(call, [output], [seed], retain_graph=True, create_graph=nested))
    parts = []
    for position, tensor in enumerate(call.inputs):
        shape = (*output.shape, *tensor.shape)
        if nested:
            parts.append(FUNCTIONS["stack"]([row[position] for row in rows]).reshape(shape))
        else:
            stacked = np.array([row[position]._a for row in rows], tensor.dtype)
            parts.append(wrap(stacked.reshape(shape)))
    return parts


def _columns(call: Call, output: Tensor) -> list[Tensor]:
    """Run one sweep per element of the inputs over the recorded reverse pass."""
    u = wrap(np.zeros(output.shape, output.dtype)).requires_grad_()
    cotangents = _gradients(call, [output], [u], create_graph=True)
    parts = []
    for tensor, linear in zip(call.inputs, cotangents, strict=True):
        columns = np.zeros((output.size, tensor.size), tensor.dtype)
        if linear._own is not None:
            for k in range(tensor.size):
                seed = np.zeros(tensor.size, tensor.dtype)
                seed[k] = 1.0
                (column,) = autograd_grad(
                    linear,
                    u,
                    wrap(seed.reshape(tensor.shape)),
                    retain_graph=True,
                    materialize_grads=True,
                )
                assert column is not None
                columns[:, k] = column._a.reshape(-1)
        parts.append(wrap(columns.reshape(*output.shape, *tensor.shape)))
    return parts


def hessian(f: Callable[..., Any], argnums: int = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the matrix of second derivatives of a scalar function.

    Parameters
    ----------
    f
        Function with a scalar result.
    argnums
        Position of the differentiated argument, an array.
    has_aux
        Whether `f` returns a pair (scalar, anything); the returned function then does too.

    Returns
    -------
    callable
        Takes the arguments of `f`; the result has the shape of the argument twice over.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.hessian(lambda x: x[0] * x[1] ** 2)(np.array([3.0, 2.0]))
    array([[0., 4.],
           [4., 6.]])
    """
    if not isinstance(argnums, int):
        raise TypeError("hessian: argnums must be one integer; use jacobian(grad(f)) for blocks")
    return jacobian(grad(f, argnums, has_aux), argnums, has_aux)


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

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.hvp(lambda x: tg.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    array([ 6., 12.])
    """
    if source := _source(f, "hvp"):
        return source.hessian_product(f, argnums)

    def wrapped(*args: Any) -> Any:
        *primals, vector = args
        call = Call(f, tuple(primals), argnums, "hvp")
        call.is_plain &= not holds_tensor([vector])
        value = _scalar(call.result, "hvp")
        if value._own is None and not call.has_inner:
            note_independent("hvp")
        nested = call.nested()
        gradients = _gradients(call, [value], create_graph=True)
        given, _ = tree(vector, "hvp: the vector")
        if len(given) != len(gradients):
            raise ValueError(
                f"hvp: the vector has {len(given)} parts, the argument {len(gradients)}"
            )
        if structure(vector) != structure(primals[argnums]):
            raise ValueError("hvp: the vector has another structure than the argument")
        vectors = [as_tensor(v) for v in given]
        again = nested or (MODE.recording and any(v._own is not None for v in vectors))
        return call.like_inputs(_gradients(call, gradients, vectors, create_graph=again))

    return Transformed(wrapped, hvp, f, argnums)


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
    if source := _source(f, "jvp"):
        return source.pushforward(f, argnums)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        primals, tangents = args[: len(args) - len(numbers)], args[len(args) - len(numbers) :]
        call = Call(f, primals, argnums, "jvp", kwargs=kwargs)
        call.is_plain &= not holds_tensor(tangents)
        results, build = tree(call.result, "jvp: the result")
        outputs = [as_tensor(result) for result in results]
        given = [leaf for tangent in tangents for leaf in tree(tangent, "jvp: a tangent")[0]]
        if len(given) != len(call.inputs):
            raise ValueError(
                f"jvp: got {len(given)} tangents for {len(call.inputs)} differentiated arguments"
            )
        for number, tangent in zip(numbers, tangents, strict=True):
            if structure(tangent) != structure(primals[number]):
                raise ValueError("jvp: a tangent has another structure than its argument")
        nested = call.nested()
        recorded = [output for output in outputs if output._own is not None]
        directions = [_tangent(t, tensor) for t, tensor in zip(given, call.inputs, strict=True)]
        rows = propagate_tangents(
            [output._own for output in recorded if output._own is not None],
            [tensor._own for tensor in call.inputs if tensor._own is not None],
            directions,
            nested or (MODE.recording and any(t._own is not None for t in directions)),
        )
        found = dict(zip(map(id, recorded), rows, strict=True))
        dots: list[Tensor] = []
        for output in outputs:
            t = found.get(id(output))
            if t is None:
                t = wrap(np.zeros(output.shape, output.dtype))
            elif any(t is other for other in dots):  # the same result is returned twice
                t = t.clone()
            dots.append(t)
        values = [call.value(output) for output in outputs]
        return build(values), build([plain(p) if call.is_plain else p for p in dots])

    return Transformed(wrapped, jvp, f, argnums)
