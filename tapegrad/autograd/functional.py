"""Derivatives of functions of tensors, with PyTorch's names: products, Jacobians and Hessians.

All take a function of tensors and its inputs, a tensor or a tuple of tensors, and return results
with the structure of the inputs and of the outputs. With ``create_graph=True`` the results can be
differentiated; otherwise they have no history. With ``strict=True`` an output or a derivative that
does not depend on an input is an error instead of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapegrad.autograd.recorded_call import RecordedCall, tensors_of
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

_STRATEGY = 'Expected strategy to be either "forward-mode" or "reverse-mode".'
_STRATEGIES = ("forward-mode", "reverse-mode")


def vjp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the outputs of a function, and the product of a cotangent and its Jacobian.

    Parameters
    ----------
    func
        Function of tensors that returns a tensor or a tuple of tensors.
    inputs
        Its arguments, a tensor or a tuple.
    v
        Cotangents, with the structure and shapes of the outputs; optional for a single output with
        one element.
    create_graph
        Record the computation, so that the results can be differentiated.
    strict
        Raise if an output does not depend on an input.

    Returns
    -------
    tuple
        The outputs, and the product, with the structure of `inputs`.

    Raises
    ------
    TypeError
        If an input, an output or a cotangent is not a tensor.
    RuntimeError
        If `v` does not fit the outputs; with `strict`, if something is independent of an input.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import vjp
    >>> vjp(lambda x: x**2, tg.tensor([1.0, 2.0]), tg.tensor([1.0, 10.0]))
    (tensor([1., 4.]), tensor([ 2., 40.]))
    """

    def run() -> tuple[Any, Any]:
        call = RecordedCall(func, inputs, "vjp", create_graph, strict)
        found = call.cotangents(call.outputs, call.vector(v, of_outputs=True), "output", "jacobian")
        return call.packed_outputs(), call.packed(found)

    return MODE.with_recording(True, run)


def jvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the outputs of a function, and the product of its Jacobian and a tangent.

    The function is called once, and tangents are propagated through its records.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As for `vjp`.
    v
        Tangents, with the structure and shapes of the inputs; optional for a single input with one
        element.

    Returns
    -------
    tuple
        The outputs, and the product, with the structure of the outputs.

    Raises
    ------
    TypeError, RuntimeError
        As for `vjp`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import jvp
    >>> jvp(lambda x: x.sum() * x, tg.tensor([1.0, 2.0]), tg.tensor([1.0, 0.0]))
    (tensor([3., 6.]), tensor([4., 2.]))
    """

    def run() -> tuple[Any, Any]:
        call = RecordedCall(func, inputs, "jvp", create_graph, strict)
        tangents = call.vector(v)
        call.check_dependence()
        found = call.tangents(call.outputs, tangents, "jacobian")
        return call.packed_outputs(), call.packed(found, call.has_outputs)

    return MODE.with_recording(True, run)


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of a function.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As for `vjp`.
    vectorize
        Compute all rows in one call of `tapegrad.autograd.grad` instead of one by one.
    strategy
        ``"reverse-mode"`` computes it by rows, ``"forward-mode"`` (with `vectorize`) by columns,
        which is faster for more outputs than inputs.

    Returns
    -------
    Tensor or tuple
        For one input and one output, a tensor with the axes of the output followed by those of the
        input; a tuple over outputs, over inputs, or a tuple of tuples otherwise.

    Raises
    ------
    TypeError, RuntimeError
        As for `vjp`; if an output is complex, unless `vectorize` is set.
    NotImplementedError
        For forward mode with `create_graph`, or without `vectorize`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import jacobian
    >>> jacobian(lambda x: x.sum() * x, tg.tensor([1.0, 2.0]))
    tensor([[4., 1.],
            [2., 5.]])
    """
    return _jacobian(func, inputs, create_graph, strict, vectorize, strategy)


def _jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool,
    strict: bool,
    vectorize: bool,
    strategy: str,
    name: str = "jacobian",
) -> Any:
    if strategy not in _STRATEGIES:
        raise AssertionError(
            f'{_STRATEGY} Hint: If your function has more outputs than inputs, "forward-mode" '
            'tends to be more performant. Otherwise, prefer to use "reverse-mode".'
        )
    if strategy == "forward-mode":
        if create_graph:
            raise NotImplementedError(
                "tapegrad.autograd.functional.jacobian: `create_graph=True` and "
                '`strategy="forward-mode"` are not supported together (yet). Please either set '
                '`create_graph=False` or `strategy="reverse-mode"`.'
            )
        if not vectorize:
            raise NotImplementedError(
                "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only "
                "implemented for `vectorize=True`."
            )

    def run() -> Any:
        call = RecordedCall(func, inputs, name, create_graph, strict)
        if strict and vectorize:
            raise RuntimeError(
                "tapegrad.autograd.functional.jacobian: `strict=True` and `vectorized=True` are "
                "not supported together. Please either set `strict=False` or `vectorize=False`."
            )
        blocks = call.columns() if strategy == "forward-mode" else call.rows(vectorize)
        rows = [call.packed(row) for row in blocks]
        return tuple(rows) if call.has_outputs else rows[0]

    return MODE.with_recording(True, run)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of a function that returns one number.

    Parameters
    ----------
    func
        Function of tensors that returns a tensor with one element.
    inputs, create_graph, strict, vectorize
        As for `jacobian`, of the gradient.
    outer_jacobian_strategy
        The strategy of that Jacobian; the gradient is computed in reverse mode.

    Returns
    -------
    Tensor or tuple
        For one input, a tensor with its axes twice; otherwise a tuple of tuples over the inputs.

    Raises
    ------
    TypeError, RuntimeError, NotImplementedError
        As for `jacobian`; if the output is not one element.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import hessian
    >>> hessian(lambda x: (x**3).sum(), tg.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    if outer_jacobian_strategy not in _STRATEGIES:
        raise AssertionError(_STRATEGY)
    is_tuple, _ = tensors_of(inputs, "inputs", "hessian")

    def gradients(*given: Tensor) -> Any:
        call = RecordedCall(func, given, "hessian", True, strict, given=True)
        found = call.gradients()
        return found if is_tuple else found[0]

    return _jacobian(
        gradients, inputs, create_graph, strict, vectorize, outer_jacobian_strategy, "hessian"
    )


def vhp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the output of a function, and the product of a vector and its Hessian.

    It is computed in reverse mode twice.

    Parameters
    ----------
    func
        Function of tensors that returns a tensor with one element.
    inputs, create_graph, strict
        As for `vjp`.
    v
        The vector, with the structure and shapes of the inputs; optional for a single input with
        one element.

    Returns
    -------
    tuple
        The output, and the product, with the structure of the inputs.

    Raises
    ------
    TypeError, RuntimeError
        As for `vjp`; if the output is not one element.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import vhp
    >>> vhp(lambda x: (x**3).sum(), tg.tensor([1.0, 2.0]), tg.tensor([1.0, 1.0]))
    (tensor(9.), tensor([ 6., 12.]))
    """

    def run() -> tuple[Any, Any]:
        call = RecordedCall(func, inputs, "vhp", create_graph, strict)
        vector = call.vector(v)
        found = call.cotangents(call.gradients(), vector, "hessian", "hessian")
        return call.packed_outputs(), call.packed(found)

    return MODE.with_recording(True, run)


def hvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """Return the output of a function, and the product of its Hessian and a vector.

    Tangents are propagated through the recorded gradient.

    Parameters
    ----------
    func, inputs, v, create_graph, strict
        As for `vhp`.

    Returns
    -------
    tuple
        The output, and the product, with the structure of the inputs.

    Raises
    ------
    TypeError, RuntimeError
        As for `vhp`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.functional import hvp
    >>> hvp(lambda x: (x**3).sum(), tg.tensor([1.0, 2.0]), tg.tensor([1.0, 1.0]))
    (tensor(9.), tensor([ 6., 12.]))
    """

    def run() -> tuple[Any, Any]:
        call = RecordedCall(func, inputs, "hvp", create_graph, strict)
        vector = call.vector(v)
        found = call.tangents(call.gradients(), vector, "hessian")
        return call.packed_outputs(), call.packed(found)

    return MODE.with_recording(True, run)
