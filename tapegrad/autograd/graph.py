"""Public names of the graph: nodes, edges, hooks and saved tensors."""

from tapegrad.autograd.engine.edge import GradientEdge, get_gradient_edge
from tapegrad.autograd.engine.multi_grad_hook import register_multi_grad_hook
from tapegrad.autograd.engine.node import Node
from tapegrad.autograd.engine.saved_tensors import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    increment_version,
    save_on_cpu,
    saved_tensors_hooks,
)

__all__ = [
    "GradientEdge", "Node", "allow_mutation_on_saved_tensors", "disable_saved_tensors_hooks",
    "get_gradient_edge", "increment_version", "register_multi_grad_hook", "save_on_cpu",
    "saved_tensors_hooks",
]  # fmt: skip
