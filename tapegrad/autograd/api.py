"""`backward` and `grad`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.batches import (
    Directions,
    implicit_seed,
    in_batches,
    is_many,
    items,
    level_of_records,
    lowered_inputs,
    lowered_outputs,
    lowered_seeds,
    of_array,
)
from tapegrad.autograd.engine.edge import GradientEdge, owner_of_edge
from tapegrad.autograd.engine.history import size_of_batches
from tapegrad.autograd.engine.passes import Pass
from tapegrad.autograd.engine.reverse_pass import FinishLeaf, sweep_arrays, sweep_tensors
from tapegrad.autograd.engine.running_hooks import run_posthooks, run_prehooks, run_tensor_hooks
from tapegrad.cuda.array import as_array, device_of, is_array, on_device_named, zeros
from tapegrad.eager.batched import NO_BACKWARD, BatchError
from tapegrad.eager.dispatch import passive
from tapegrad.eager.duals import any_dual
from tapegrad.eager.inplace import apply_inplace
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Meta, Tensor, wrap
from tapegrad.eager.traced import refuse_when_recording
from tapegrad.forks import process_lock
from tapegrad.ops.elementwise import add
from tapegrad.ops.table.op import refuse_masked
from tapegrad.probes import probe
from tapegrad.tape.avals import AVALS
from tapegrad.tape.layout import LEAF_CLOCK, OWN_AVAL, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import Owner, notes_of
from tapegrad.tape.tape import TAPE

Differentiable = Tensor | GradientEdge
Tensors = Differentiable | Sequence[Differentiable]


IN_RECORDING = "a backward pass runs inside of the function"


def _as_tuple(value: Any, what: str) -> tuple[Any, ...]:
    if isinstance(value, (Tensor, GradientEdge)):
        return (value,)
    if value is None:
        raise TypeError(f"{what} expected to be a Tensor or a sequence of Tensors, got None")
    return tuple(value)


def _roots(outputs: tuple[Tensor, ...], cotangents: Any) -> list[tuple[Owner, Tensor]]:
    """Pair the owners of outputs with their cotangents, created or checked."""
    cotangents = _as_seeds(cotangents, outputs)
    roots = []
    for k, (output, g) in enumerate(zip(outputs, cotangents, strict=True)):
        own = _owner(output, k, "tensors")
        if own is None:
            raise RuntimeError(
                f"element {k} of tensors does not require grad and does not have a grad_fn"
            )
        kind = AVALS.kind(own[OWN_AVAL])
        g = implicit_seed(*kind) if g is None else _cotangent(g, *kind, k)
        roots.append((own, g))
    return roots


def _as_seeds(cotangents: Any, outputs: Sequence[Any]) -> Sequence[Any]:
    """Return one cotangent, or None, for every output."""
    if cotangents is None:
        cotangents = (None,) * len(outputs)
    elif isinstance(cotangents, Tensor) or is_array(cotangents):
        cotangents = (cotangents,)
    if len(cotangents) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(cotangents)} gradients")
    return cotangents


def _owner(value: Any, k: int, what: str) -> Owner | None:
    if isinstance(value, Tensor):
        return value._own
    if isinstance(value, GradientEdge):
        return owner_of_edge(value)
    raise TypeError(f"element {k} of {what} is a {type(value).__name__}, not a Tensor")


def _cotangent(g: Any, shape: tuple[int, ...], dtype: np.dtype, device: str, k: int) -> Tensor:
    """Return a given cotangent as a tensor with the dtype of its output, after checking it."""
    if not isinstance(g, Tensor):
        refuse_masked(g)
        if not (is_array(g) or isinstance(g, (np.generic, float, int, complex))):
            raise TypeError(
                f"gradients can be either Tensors, arrays or None, but got {type(g).__name__}"
            )
        given = as_array(g)  # arrays of NumPy are constants, for tensors on a device too
        g = wrap(given if device == device_of(given) else on_device_named(device, given))
    if g.device != device:
        raise RuntimeError(
            f"grad_output[{k}] is on device {g.device} and output[{k}] is on device {device}."
        )
    if g.shape != shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{k}] has a shape of {list(g.shape)} and "
            f"output[{k}] has a shape of {list(shape)}."
        )
    if (g.dtype.kind == "c") is not (dtype.kind == "c"):
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. "
            f"Mismatch in dtype: grad_output[{k}] has a dtype of {g.dtype} and output[{k}] has a "
            f"dtype of {dtype}."
        )
    if g.dtype != dtype:
        g = g.astype(dtype)
    return g


def _on_tensors(create_graph: bool) -> bool:
    """Whether a pass has to run on tensors: they have a history, or a tangent, or are checked."""
    return create_graph or (bool(MODE.special) and (MODE.anomaly or MODE.thread.dual is not None))


def _run(
    roots: list[tuple[Owner, Tensor]],
    inputs: Sequence[Owner] | None,
    retain: bool,
    create_graph: bool,
    finish_leaf: FinishLeaf,
) -> dict[int, tuple[Owner, Tensor]]:
    if _on_tensors(create_graph) or (MODE.special and is_many([g for _, g in roots])):
        return MODE.with_recording(create_graph, sweep_tensors, roots, inputs, retain, finish_leaf)
    found: dict[int, tuple[Owner, Any]]
    found = sweep_arrays([(own, g._a) for own, g in roots], inputs, retain, finish_leaf)
    for slot, (own, g) in found.items():
        if g is not None:
            found[slot] = own, passive(g)
    return found


@probe("backward", "pass")
def backward(
    tensors: Tensors,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of tensors to the `.grad` of the leaves that they depend on.

    Parameters
    ----------
    tensors
        Outputs to differentiate.
    grad_tensors
        Their cotangents, with the same shapes; optional for outputs with one element.
    retain_graph
        Keep the values saved for the backward pass so that it can run again; default:
        `create_graph`.
    create_graph
        Record the backward pass so that the gradients can be differentiated.
    grad_variables
        Deprecated name of `grad_tensors`.
    inputs
        Accumulate into the `.grad` of these tensors only, whether they are leaves or not.

    Raises
    ------
    RuntimeError
        If an output has no graph, a cotangent is missing or has the wrong shape, or saved values
        were freed by an earlier pass or modified in place.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.autograd.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    if grad_variables is not None:
        warnings.warn(
            "`grad_variables` is deprecated. Use `grad_tensors` instead.",
            FutureWarning,
            stacklevel=level_of_user(),
        )
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to "
                "`backward()`. Please only use `grad_tensors`."
            )
        grad_tensors = grad_variables
    refuse_when_recording(IN_RECORDING)
    if MODE.thread.levels:
        raise BatchError(NO_BACKWARD)
    owners = None
    targets: dict[int, Tensor] = {}
    if inputs is not None:
        chosen = _as_tuple(inputs, "`inputs`")
        if not chosen:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
        owners = _owners(chosen)
        for own, target in zip(owners, chosen, strict=True):
            if isinstance(target, Tensor):
                targets[own[OWN_SLOT]] = target
            elif own[OWN_SLOT] < LEAF_CLOCK and not _is_retained(own):
                raise RuntimeError(
                    "backward: `inputs` has the edge of an op, which has no `.grad` to accumulate "
                    "into; give the tensor, or use autograd.grad"
                )
    roots = _roots(_as_tuple(tensors, "tensors"), grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    if create_graph:
        warnings.warn(
            "Using backward() with create_graph=True will create a reference cycle between the "
            "parameter and its gradient which can cause a memory leak. We recommend using "
            "autograd.grad when creating the graph to avoid this. If you have to use this "
            "function, make sure to reset the .grad fields of your parameters to None after use "
            "to break the cycle and avoid the leak.",
            UserWarning,
            stacklevel=level_of_user(),
        )

    def run() -> None:
        found = _run(roots, owners, retain, create_graph, finish_leaf)
        MODE.with_recording(create_graph, _accumulate_all, found, targets, create_graph)

    def finish_leaf(own: Owner, g: Tensor | None) -> None:
        accumulate(own, g, create_graph, False)

    Pass(roots, owners, create_graph).run(run)


def _accumulate_all(
    found: dict[int, tuple[Owner, Tensor]], targets: dict[int, Tensor], create_graph: bool
) -> None:
    """Add the gradients of a pass to the `.grad` of leaves and of the requested targets."""
    own_memory = not _on_tensors(create_graph)  # the compiled sweep ensures it
    for slot, (own, g) in found.items():
        if slot >= LEAF_CLOCK:
            accumulate(own, g, create_graph, own_memory)
        elif slot in targets and not (meta := targets[slot].ensure_meta()).retains_grad:
            add_to_grad(meta, g, create_graph, False)


def _is_retained(own: Owner) -> bool:
    notes = notes_of(own)
    return notes is not None and notes.retains is not None


def accumulate(own: Owner, g: Tensor | None, create_graph: bool, own_memory: bool) -> None:
    """Run a leaf's hooks on a gradient and add the result to its `.grad`.

    With `own_memory`, nothing else holds the memory of the gradient before the hooks run.
    """
    meta = own[OWN_INPUTS]
    leaf = meta.leaf() if meta.leaf is not None else None
    has_ceased = leaf is not None and leaf._own is None  # to require gradients
    notes = notes_of(own)
    if notes is None:
        if g is not None and not has_ceased:
            add_to_grad(meta, g, create_graph, own_memory)
        return
    g = run_tensor_hooks(notes.hooks, g)
    if has_ceased:
        return
    if notes.prehooks:
        (g,) = run_prehooks(notes.prehooks, (g,))
    if g is not None:  # a hook may have kept it
        add_to_grad(meta, g, create_graph, False)
    for hook in list(notes.accumulated.values()):
        if hook(meta.variable(own)) is not None:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")
    if notes.posthooks:
        run_posthooks(notes.posthooks, (), (g,))


_adding = process_lock()


def add_to_grad(meta: Meta, g: Tensor, create_graph: bool, own_memory: bool) -> None:
    """Add to a `.grad`, in place unless `create_graph` is set.

    Later passes add to `.grad` in place, so it must not share memory with anything else.
    """
    with _adding:  # two threads may add to one leaf
        old = meta.grad
        if old is None:
            meta.grad = g if own_memory else g.clone()
        elif create_graph:
            meta.grad = old + g
        elif any_dual((old, g)):
            MODE.with_recording(False, apply_inplace, add, old, g)
        else:
            TAPE.note_mutation(old._a)  # records computed from the gradient may have saved it
            np.add(old._a, g._a, out=old._a)


def _owners(inputs: tuple[Any, ...]) -> list[Owner]:
    owners = []
    for k, value in enumerate(inputs):
        own = _owner(value, k, "inputs")
        if own is None:
            raise RuntimeError(
                f"One of the differentiated Tensors does not require grad (input {k})"
            )
        owners.append(own)
    return owners


@probe("grad", "pass")
def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of outputs with respect to inputs; `.grad` is not touched.

    Parameters
    ----------
    outputs
        Tensors to differentiate; for several, the gradients are those of their sum.
    inputs
        Tensors to differentiate with respect to, leaves or not. Only the cotangents that their
        gradients need are computed.
    grad_outputs
        Cotangents of the outputs, with the same shapes; optional for outputs with one element.
    retain_graph
        Keep the values saved for the backward pass; default: `create_graph`.
    create_graph
        Record the backward pass so that the gradients can be differentiated.
    only_inputs
        Deprecated and ignored; False warns.
    allow_unused
        Return None instead of raising for inputs that the outputs do not depend on; default:
        `materialize_grads`.
    is_grads_batched
        The leading axis of every cotangent is a batch axis; gradients have it too.
    materialize_grads
        Return zeros for inputs that the outputs do not depend on.

    Returns
    -------
    tuple of Tensor
        One gradient per input, with its shape and dtype.

    Raises
    ------
    RuntimeError
        As for `backward`, and if an input is unused or does not require gradients.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(3.0, requires_grad=True)
    >>> tg.autograd.grad(x**3, x)
    (tensor(27.),)
    """
    refuse_when_recording(IN_RECORDING)
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). "
            "To accumulate gradient for other parts of the graph, please use "
            "autograd.backward.",
            FutureWarning,
            stacklevel=level_of_user(),
        )
    if allow_unused is None:
        allow_unused = materialize_grads
    elif materialize_grads and not allow_unused:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )
    chosen = _as_tuple(inputs, "inputs")
    if not chosen:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    retain = create_graph if retain_graph is None else retain_graph
    outputs = _as_tuple(outputs, "outputs")
    if is_grads_batched:
        return _batched(
            outputs, chosen, grad_outputs, retain, create_graph, allow_unused, materialize_grads
        )
    level = level_of_records((*outputs, *chosen))
    if level is not None:
        found_items = grad(
            lowered_outputs(outputs, level),
            lowered_inputs(chosen, level),
            lowered_seeds(outputs, _as_seeds(grad_outputs, outputs), level),
            retain_graph,
            create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )
        return tuple(items(found_items, level))
    owners = _owners(chosen)
    roots = _roots(outputs, grad_outputs)

    def run() -> list[Tensor | None]:
        for slot, (own, g) in _run(roots, owners, retain, create_graph, finish_leaf).items():
            if slot >= LEAF_CLOCK and notes_of(own) is not None:
                MODE.with_recording(create_graph, finish_leaf, own, g)
            else:
                found[slot] = g
        return [found.get(own[OWN_SLOT]) for own in owners]

    found: dict[int, Tensor | None] = {}

    def finish_leaf(own: Owner, g: Tensor | None) -> None:
        notes = notes_of(own)
        if notes is not None:
            g = run_tensor_hooks(notes.hooks, g)
        found[own[OWN_SLOT]] = g

    given = Pass(roots, owners, create_graph).run(run)
    result: list[Tensor | None] = []
    for k, (own, g) in enumerate(zip(owners, given, strict=True)):
        if g is not None or (allow_unused and not materialize_grads):
            result.append(g)
        elif materialize_grads and isinstance(chosen[k], GradientEdge):
            raise RuntimeError(
                "materialize_grads cannot be used when the given input is a GradientEdge"
            )
        elif materialize_grads:
            aval = own[OWN_AVAL]
            unused = wrap(zeros(*AVALS.kind(aval)))
            result.append(unused.requires_grad_(create_graph))
        else:
            raise RuntimeError(
                f"The differentiated Tensor at index {k} appears to not have been used in the "
                "graph. Set allow_unused=True if this is the desired behavior."
            )
    return tuple(result)


def _batched(
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    cotangents: Any,
    retain: bool,
    create_graph: bool,
    allow_unused: bool,
    materialize: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients for every cotangent of a batch.

    One pass computes them all. If it would call functions of the user, which are written for one
    cotangent, there is a pass for each.
    """
    if cotangents is None:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    if is_array(cotangents):
        cotangents = (cotangents,)
    cotangents = _as_tuple(cotangents, "grad_outputs")
    for k, (output, g) in enumerate(zip(outputs, cotangents, strict=False)):
        own = _owner(output, k, "tensors")
        if g is None or own is None:
            continue
        shape = AVALS.shapes[own[OWN_AVAL]]
        if g.shape[1:] != shape:
            raise RuntimeError(
                "If `is_grads_batched=True`, we interpret the first dimension of each grad_output "
                "as the batch dimension. The sizes of the remaining dimensions are expected to "
                "match the shape of corresponding output, but a mismatch was detected: "
                f"grad_output[{k}] has a shape of {list(g.shape)} and output[{k}] has a shape of "
                f"{list(shape)}."
            )
    cotangents = [g if g is None or isinstance(g, Tensor) else of_array(g) for g in cotangents]
    sizes = {g.shape[0] for g in cotangents if g is not None}
    if len(sizes) != 1:
        raise ValueError(
            "Expected all grad_outputs to have the same size in the batch dimension, got sizes "
            f"{[g.shape[0] for g in cotangents if g is not None]}"
        )
    (count,) = sizes

    def sweep(start: int, end: int, make: Directions) -> tuple[Tensor | None, ...]:
        return grad(
            outputs,
            inputs,
            [None if g is None else make(g[start:end]) for g in cotangents],
            retain or end < count,
            create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize,
        )

    owners = [own for k, z in enumerate(outputs) if (own := _owner(z, k, "tensors")) is not None]
    return tuple(
        in_batches(count, size_of_batches(owners, _owners(inputs), count, create_graph), sweep)
    )
