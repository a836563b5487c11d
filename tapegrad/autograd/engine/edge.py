"""`GradientEdge`: an edge of the graph, independent of a tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

from tapegrad.autograd.engine.node import Node, edge_of
from tapegrad.eager.frames import RuleFrame
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.owner import Owner


class GradientEdge(NamedTuple):
    """One output of a node, which `grad` and `backward` accept in place of a tensor.

    Attributes
    ----------
    node
        The node.
    output_nr
        Number of the output.
    ownership_token
        An object that keeps the graph alive.
    """

    node: Node
    output_nr: int
    ownership_token: Any = None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return the edge of a tensor in the graph.

    Parameters
    ----------
    tensor
        A tensor that requires gradients.

    Returns
    -------
    GradientEdge
        The tensor's node and output number. It keeps the graph alive, but not the tensor.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd.graph import get_gradient_edge
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> edge = get_gradient_edge(x)
    >>> tg.autograd.grad(x * x, edge)
    (tensor(4.),)
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients"
        )
    node, output_nr = edge_of(tensor)
    return GradientEdge(node, output_nr, tensor._own)


def owner_of_edge(edge: GradientEdge) -> Owner:
    """Return the owner of the output that an edge refers to.

    Raises
    ------
    RuntimeError
        If the node has several outputs and no use of this one is known.
    """
    if edge.ownership_token is not None:
        return edge.ownership_token
    node = edge.node
    own = node._own
    frame = own[-1]
    if not isinstance(frame, RuleFrame) or getattr(frame, "outputs", None) is None:
        return own
    if edge.output_nr not in node._outputs:
        raise RuntimeError(
            f"the graph does not use output {edge.output_nr} of {node.name()}; take the edge from "
            "the tensor, by get_gradient_edge"
        )
    return node._outputs[edge.output_nr]
