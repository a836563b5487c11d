"""`NestedIOFunction`: a Function whose inputs and outputs are nested containers of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tapegrad.autograd.engine.context import BackwardCFunction
from tapegrad.autograd.engine.custom import Function
from tapegrad.eager.tensor import Tensor


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Tensor)


def _flatten(value: Any) -> Iterator[Tensor | None]:
    """Yield the tensors (and Nones) of nested lists, tuples, namedtuples and dicts."""
    if _is_leaf(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _flatten(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    else:
        raise ValueError(
            "Auto nesting doesn't know how to process an input object of type "
            f"{type(value).__name__}. Accepted types: Tensors, or lists/tuples of them"
        )


def _rebuild(form: Any, leaves: Iterator[Any]) -> Any:
    """Arrange leaves in the form of a nested value."""
    if _is_leaf(form):
        return next(leaves)
    if isinstance(form, dict):
        return type(form)((key, _rebuild(item, leaves)) for key, item in form.items())
    items = [_rebuild(item, leaves) for item in form]
    return type(form)(*items) if hasattr(form, "_fields") else type(form)(items)


class _Form:
    """The form of a nested value, without its tensors."""

    def __init__(self, value: Any) -> None:
        for _ in _flatten(value):  # raises for other containers
            pass
        self.value = _rebuild(value, iter(lambda: None, 0))

    def fill(self, leaves: Any) -> Any:
        return _rebuild(self.value, iter(leaves))


class NestedContext(BackwardCFunction):
    """The context of a `NestedIOFunction`, whose methods take and return nested values."""

    _form: _Form | None = None  # of the saved values

    def save_for_backward(self, *args: Any) -> None:
        """Keep nested tensors for the backward pass."""
        self._form = _Form(args)
        super().save_for_backward(*_flatten(args))

    @property
    def saved_tensors(self) -> Any:
        """The values given to `save_for_backward`, in their nested form."""
        flat = super().saved_tensors
        return flat if self._form is None else self._form.fill(flat)

    def mark_dirty(self, *args: Any) -> None:
        """Declare that forward modified nested arguments in place."""
        super().mark_dirty(*(tensor for tensor in _flatten(args) if tensor is not None))

    def mark_non_differentiable(self, *args: Any) -> None:
        """Declare that nested outputs do not require gradients."""
        kept = [tensor for tensor in _flatten(args) if tensor is not None]
        super().mark_non_differentiable(*kept)


class NestedIOFunction(Function):
    """A Function of nested containers: lists, tuples, namedtuples or dicts of tensors.

    Subclasses define ``forward_extended(ctx, *inputs)`` and ``backward_extended(ctx, *grads)``;
    backward gets gradients in the form of the outputs and returns them in the form of the inputs.
    Values given to `save_for_backward` keep their form too. This is for legacy code: new Functions
    take and return tensors.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.function import NestedIOFunction
    >>> class Double(NestedIOFunction):
    ...     def forward_extended(ctx, pair):
    ...         return [pair["a"] * 2, pair["b"] * 2]
    ...
    ...     def backward_extended(ctx, *grads):
    ...         return ({"a": grads[0] * 2, "b": grads[1] * 2},)
    >>> x = tg.tensor(1.0, requires_grad=True)
    >>> a, b = Double.apply({"a": x, "b": tg.tensor(2.0)})
    >>> (a + b).backward()
    >>> x.grad
    tensor(2.)
    """

    _context_cls = NestedContext

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward_extended` and record it if an argument requires gradients.

        Parameters
        ----------
        *args
            Nested containers of tensors and None.

        Returns
        -------
        Tensor, list, tuple or dict
            The result of `forward_extended`.

        Raises
        ------
        ValueError
            If an argument contains anything but tensors and None; the message names its type.
        """
        forms: tuple[_Form, list[_Form]] = (_Form(args), [])
        flat = super().apply(forms, *_flatten(args), **kwargs)
        return forms[1][0].fill(flat)

    @staticmethod
    def forward(ctx: Any, forms: Any, *flat: Any) -> Any:
        """Run the user's forward on nested arguments."""
        nested, found = forms
        output = ctx._forward_cls.forward_extended(ctx, *nested.fill(flat))
        ctx._output_form = _Form(output)
        found.append(ctx._output_form)
        return tuple(_flatten(output))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Run the user's backward on nested gradients."""
        nested = ctx._output_form.fill(grads)
        several = isinstance(ctx._output_form.value, (list, tuple, dict))
        single = not several or isinstance(ctx._output_form.value, dict)
        result = ctx._forward_cls.backward_extended(ctx, *((nested,) if single else nested))
        return (None, *_flatten(result))

    @staticmethod
    def forward_extended(ctx: Any, *inputs: Any) -> Any:
        """Compute the nested outputs (defined by the subclass).

        Parameters
        ----------
        ctx
            The context.
        *inputs
            The nested arguments.
        """
        raise NotImplementedError("NestedIOFunction: define forward_extended(ctx, *inputs)")

    @staticmethod
    def backward_extended(ctx: Any, *grad_output: Any) -> Any:
        """Return the nested gradients of the arguments (defined by the subclass).

        Parameters
        ----------
        ctx
            The context.
        *grad_output
            The gradients of the outputs, in their form.
        """
        raise NotImplementedError("NestedIOFunction: define backward_extended(ctx, *grad_output)")
