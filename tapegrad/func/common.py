"""What the transforms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.api import grad as autograd_grad
from tapegrad.calls import Call, check_function
from tapegrad.cuda.array import zeros
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.imports import whole_imports
from tapegrad.pytrees import Build, structure, tree


def compiler_of(f: Any, name: str, has_aux: bool = False) -> Any:
    """Return the module that transforms source, or None if `f` is not compiled."""
    check_function(f, name)
    if not (hasattr(f, "py_func") and hasattr(f, "targetoptions")):
        return None
    if has_aux:
        raise TypeError(
            f"{name}: has_aux is for functions of tensors; a compiled function has no other "
            "results than those that are differentiated"
        )
    with whole_imports("tapegrad.transform.function"):
        import tapegrad.transform.function as transform

    return transform


def outputs_of(call: Call) -> tuple[list[Tensor], Build]:
    """Return the results of a function as tensors, and what puts others in their places."""
    leaves, build = tree(call.result, f"{call.name}: the result")
    return [as_tensor(leaf) for leaf in leaves], build


def has_no_history(call: Call, outputs: Sequence[Tensor]) -> bool:
    """Whether derivatives are zero because nothing was recorded; a derivative may be constant."""
    return not call.has_inner and all(output._own is None for output in outputs)


def scalar_of(result: Any, name: str) -> Tensor:
    """Return the result of a function as a tensor, after checking that it is one number."""
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


def cotangents_of_inputs(
    call: Call, outputs: Any, cotangents: Any = None, **options: Any
) -> list[Tensor]:
    """Return the cotangents of the differentiated arguments for those of outputs."""
    if all(output._own is None for output in outputs):
        return [wrap(zeros(t.shape, t.dtype, t.device)) for t in call.inputs]
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


def cotangents_like(outputs: Sequence[Any], result: Any, cotangent: Any) -> list[Tensor]:
    """Return the leaves of a cotangent for `vjp`, after checking its structure.

    Parameters
    ----------
    outputs, result
        The leaves of what the function returned, and that itself.
    cotangent
        Given for the result.
    """
    given, _ = tree(cotangent, "vjp: the cotangent")
    if len(given) != len(outputs):
        raise ValueError(f"vjp: got {len(given)} cotangents for {len(outputs)} results")
    if structure(cotangent) != structure(result):
        raise ValueError("vjp: the cotangent has another structure than the result")
    return [as_tensor(g) for g in given]


def checked_tangent(given: Any, tensor: Tensor, name: str) -> Tensor:
    """Return the tangent given for an argument as a tensor, after checking it."""
    t = as_tensor(given)
    if t.dtype.kind == "c" and tensor.dtype.kind != "c":
        raise TypeError(
            f"{name}: a tangent has dtype {t.dtype}, and its argument {tensor.dtype}; a real "
            "argument has real tangents"
        )
    if t.shape != tensor.shape:
        raise ValueError(
            f"{name}: a tangent has shape {list(t.shape)}, and its argument {list(tensor.shape)}"
        )
    return t
