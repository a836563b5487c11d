"""Jacobians and Hessians of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapegrad.autograd.api import grad as autograd_grad
from tapegrad.autograd.batches import along_units
from tapegrad.autograd.tangents import columns_of
from tapegrad.calls import Argnums, Call, Transformed, as_argnums, check_function
from tapegrad.cuda.array import zeros
from tapegrad.eager.batched import as_item, in_all_levels
from tapegrad.eager.detached import note_independent
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.func import recorded
from tapegrad.func.common import compiler_of, cotangents_of_inputs, has_no_history, outputs_of
from tapegrad.func.gradients import grad


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
    return _transformed(jacobian, _jacobian, f, argnums, has_aux)


def jacrev(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f` by rows, in reverse mode.

    Parameters
    ----------
    f, argnums, has_aux
        As for `jacobian`, which chooses between rows and columns, and so does this function for a
        compiled `f`.

    Returns
    -------
    callable
        As for `jacobian`.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.jacrev(lambda x: tg.sum(x) * x)(np.array([1.0, 2.0]))
    array([[4., 1.],
           [2., 5.]])
    """
    return _transformed(jacrev, _rows, f, argnums, has_aux)


def jacfwd(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f` by columns, in forward mode.

    The function is called once; tangents are propagated through its records.

    Parameters
    ----------
    f, argnums, has_aux
        As for `jacrev`.

    Returns
    -------
    callable
        As for `jacobian`; complex results are allowed. With respect to a complex argument, it is
        the complex derivative of a holomorphic function.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> tg.jacfwd(lambda x: np.outer(x, x).ravel())(np.array([1.0, 2.0]))
    array([[2., 0.],
           [2., 1.],
           [2., 1.],
           [0., 4.]])
    """
    return _transformed(jacfwd, _forward, f, argnums, has_aux)


def _transformed(
    transform: Any, method: Any, f: Callable[..., Any], argnums: Argnums, has_aux: bool
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f` by a method for one output."""
    name = transform.__name__
    argnums = as_argnums(argnums, name)
    if source := compiler_of(f, name, has_aux):
        return source.jacobian(f, argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Call(f, args, argnums, name, has_aux, kwargs)
        outputs, build = outputs_of(call)
        if has_no_history(call, outputs):
            note_independent(name)
        nested = call.nested()
        found = build([call.like_inputs(_block(call, z, nested, method)) for z in outputs])
        return (found, call.auxiliary()) if has_aux else found

    record = functools.partial(recorded.jacobian, name=name)
    return Transformed(wrapped, transform, f, argnums, has_aux, recorded=record)


def _block(call: Call, output: Tensor, nested: bool, method: Any) -> list[Tensor]:
    """Return the Jacobian of one output with respect to every input."""
    if output.dtype.kind == "c" and method is not _forward:
        raise TypeError(
            f"{call.name}: the function returned numbers of dtype {output.dtype}; the Jacobian is "
            "of real ones: return their parts (real, imag, or tg.view_as_real), or use jacfwd"
        )
    if output._own is None:
        return [wrap(zeros((*output.shape, *t.shape), t.dtype, t.device)) for t in call.inputs]
    return method(call, output, nested)


def _forward(call: Call, output: Tensor, nested: bool) -> list[Tensor]:
    """Propagate the unit tangents of the inputs through the records."""
    is_real = output.dtype.kind != "c"
    if is_real and any(x.dtype.kind == "c" for x in call.inputs):
        raise TypeError(
            "jacfwd: a real result has two derivatives with respect to a complex argument, and a "
            "column is one of them: use jacobian, or take the parts of the argument"
        )
    (blocks,) = columns_of([output], call.inputs, nested)
    if not is_real:
        return blocks
    pairs = zip(blocks, call.inputs, strict=True)
    return [FUNCTIONS["astype"](block, x.dtype) for block, x in pairs]


def _jacobian(call: Call, output: Tensor, nested: bool) -> list[Tensor]:
    """Choose between rows and columns."""
    is_real = all(t.dtype.kind == "f" for t in call.inputs)
    if is_real and not nested and output.size > 2 * sum(t.size for t in call.inputs):
        assert output._own is not None
        if not call.runs_user_code(output._own):  # which may not be linear, or not recorded
            return _columns(call, output)
    return _rows(call, output, nested)


def _rows(call: Call, output: Tensor, nested: bool) -> list[Tensor]:
    """Run the reverse pass for every element of the output."""
    assert output._own is not None
    rows = along_units(
        output,
        [output._own],
        [own for x in call.inputs if (own := x._own) is not None],
        nested,
        lambda unit: cotangents_of_inputs(
            call, [output], [unit], retain_graph=True, create_graph=nested
        ),
    )
    return [
        FUNCTIONS["reshape"](rows[k], (*output.shape, *x.shape))
        if output.size
        else wrap(zeros((*output.shape, *x.shape), x.dtype, x.device))
        for k, x in enumerate(call.inputs)
    ]


def _columns(call: Call, output: Tensor) -> list[Tensor]:
    """Run the pass over the recorded reverse pass for every element of the inputs."""
    u = as_item(
        in_all_levels(wrap(zeros(output.shape, output.dtype, output.device))).requires_grad_()
    )
    cotangents = cotangents_of_inputs(call, [output], [u], create_graph=True)
    parts = []
    for x, linear in zip(call.inputs, cotangents, strict=True):
        if linear._own is None or not x.size:
            parts.append(wrap(zeros((*output.shape, *x.shape), x.dtype, x.device)))
            continue
        transposed = functools.partial(_pulled_back, linear, u)
        (columns,) = along_units(x, [linear._own], [u._own], False, transposed)
        order = (*range(1, 1 + output.ndim), 0)
        moved = FUNCTIONS["transpose"](columns, order)
        whole = FUNCTIONS["reshape"](moved, (*output.shape, *x.shape))
        parts.append(FUNCTIONS["astype"](whole, x.dtype))
    return parts


def _pulled_back(linear: Tensor, u: Tensor, g: Tensor) -> Any:
    return autograd_grad(linear, u, g, retain_graph=True, materialize_grads=True)


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
    check_function(f, "hessian")
    argnums = as_argnums(argnums, "hessian")
    if not isinstance(argnums, int):
        raise TypeError("hessian: argnums must be one integer; use jacobian(grad(f)) for blocks")
    return jacobian(grad(f, argnums, has_aux), argnums, has_aux)
