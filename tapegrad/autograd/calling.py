"""Calling a node: running its vjp alone on cotangents of its outputs."""

from __future__ import annotations

from typing import Any

from tapegrad.autograd.api import add_to_grad
from tapegrad.autograd.engine.kept_values import ARRAYS
from tapegrad.autograd.engine.mutated import mutated_message
from tapegrad.autograd.engine.node import AccumulateGrad, Node, with_passive
from tapegrad.autograd.engine.reverse_pass import fit_tensor, vjp_of_record
from tapegrad.eager.frames import RuleFrame
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.layout import OWN_AVAL, OWN_INPUTS
from tapegrad.tape.owner import inputs_of
from tapegrad.tape.sweep import MutatedError


def call_node(self: Node, *grad_outputs: Tensor | None) -> Any:
    """Return the gradients of a node's inputs for given gradients of its outputs.

    No hook runs and nothing is freed. The computation is recorded if recording is on.

    Parameters
    ----------
    *grad_outputs
        One tensor per output; None for outputs without gradient.

    Returns
    -------
    Tensor or tuple
        The gradient of the only input, or a tuple; None for inputs that need no gradient.
    """
    own = self._own
    outputs = getattr(own[-1], "outputs", None)
    count = 1 if outputs is None else len(outputs)
    if len(grad_outputs) != count:
        raise TypeError(
            f"expected {count} arguments, got {len(grad_outputs)} instead ({self.name()} has "
            f"{count} outputs)"
        )
    for k, value in enumerate(grad_outputs):
        if value is not None and not isinstance(value, (Tensor, *ARRAYS)):
            raise TypeError(f"argument {k} is not a Variable (got {type(value).__name__})")
    if isinstance(self, AccumulateGrad):
        (given,) = grad_outputs
        if given is not None:
            add_to_grad(own[OWN_INPUTS], fit_tensor(given, own[OWN_AVAL]), False, False)
        return ()
    g: Any = grad_outputs[0]
    if outputs is not None:
        g = {k: value for k, value in enumerate(grad_outputs) if value is not None}
    elif g is not None:
        g = fit_tensor(g, own[OWN_AVAL])
    parents = inputs_of(own)
    runs = isinstance(own[-1], RuleFrame) and own[-1].runs_undefined
    found: list[Any] = [None] * len(parents)
    if g is not None or runs:
        try:
            found = vjp_of_record(own, g, lambda _: True)
        except MutatedError as error:
            raise RuntimeError(mutated_message(error.slot, own)) from None
    fitted = [
        None if value is None or parent is None else fit_tensor(value, parent[OWN_AVAL])
        for parent, value in zip(parents, found, strict=False)
    ]
    gradients = with_passive(own[-1], fitted) if isinstance(own[-1], RuleFrame) else fitted
    return gradients[0] if len(gradients) == 1 else tuple(gradients)


# the module of nodes does not import the engine that runs vjps
Node.__call__ = call_node  # type: ignore[method-assign]
