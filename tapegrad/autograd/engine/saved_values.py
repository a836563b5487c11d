"""Values that a record of the tape saved for its vjp."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.autograd.engine.mutated import mutated_message
from tapegrad.cuda.array import HOST
from tapegrad.eager.frames import OpFrame
from tapegrad.eager.saved_values import SECOND_TIME, check_unmutated, restore
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.table.kinds import Reduction, View
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import FREED, LEAF_CLOCK, OWN_AVAL, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import Owner, op_and_flags, segment_of
from tapegrad.tape.sweep import MutatedError
from tapegrad.tape.tape import TAPE

# PyTorch's names of values, and their names in vjps
_NAMES = {"self": "x", "other": "y", "exponent": "y", "result": "z", "dim": "axis"}
_PREFIX = "_saved_"


def swept_values(own: Owner, op: Any) -> dict[str, Any]:
    """Return the arguments of the vjp of an op known to the compiled sweep, except the cotangent.

    Parameters
    ----------
    own
        Owner of the record.
    op
        The op.

    Raises
    ------
    MutatedError
        If one of the values was modified after it was saved.
    """
    if isinstance(op, View):
        parent, parameters = own[OWN_INPUTS], own[OWN_INPUTS + 1]
        return {**parameters, "x_shape": AVALS.shapes[parent[OWN_AVAL]]}
    values: dict[str, Any] = {}
    slot = own[OWN_SLOT]
    for name, index, maker in op.places:
        array = own[index]
        if array is not None:
            if TAPE.mutations:
                check_unmutated(slot, array)
            owner = own if maker == 0 else own[maker] if maker > 0 else None
            is_constant = owner is None and type(array) is np.ndarray
            if is_constant and AVALS.devices[own[OWN_AVAL]] != HOST:
                values[name] = array  # a tensor would be one of another device
            else:
                values[name] = wrap(array, owner)
    if isinstance(op, Reduction):
        shape = AVALS.shapes[own[OWN_INPUTS][OWN_AVAL]]
        mask = segment_of(own).cell(slot, 4)
        values["x_shape"] = shape
        values["axis"] = tuple(k for k in range(len(shape)) if mask >> k & 1)
    return values


def saved_attributes(own: Owner) -> dict[str, str]:
    """Return the names of the attributes for saved values, with their names in vjps."""
    op = OPS.ops[op_and_flags(own)[0]]
    if own[OWN_SLOT] >= LEAF_CLOCK:
        return {}
    if isinstance(own[-1], OpFrame):
        frame_op = own[-1].op
        values, _, _ = frame_op.plan((1 << len(frame_op.arguments)) - 1)
        names = [*dict.fromkeys([*frame_op.arguments, *values])]
    elif isinstance(op, View):
        names = [*own[OWN_INPUTS + 1]]
    elif hasattr(op, "places"):
        names = [name for name, _, _ in op.places]
        names += ["axis"] if isinstance(op, Reduction) else []
    else:
        return {}
    shown = {_PREFIX + name: name for name in names}
    shown.update((_PREFIX + other, name) for other, name in _NAMES.items() if name in names)
    return shown


def saved_attribute(own: Owner, attribute: str) -> Any:
    """Return a saved value by the name of its attribute; None if it was not needed.

    Raises
    ------
    AttributeError
        If there is no such attribute.
    RuntimeError
        If it was freed by a backward pass or modified after it was saved.
    """
    name = saved_attributes(own)[attribute]
    if op_and_flags(own)[1] & FREED:
        raise RuntimeError(SECOND_TIME)
    try:
        value = _saved(own, name)
    except MutatedError as error:
        raise RuntimeError(mutated_message(error.slot, own)) from None
    if isinstance(value, Tensor) and value._own is not None and value._own[OWN_SLOT] >= LEAF_CLOCK:
        leaf = value._own[OWN_INPUTS].variable(value._own)
        value = leaf if leaf._a is value._a else value
    return value


def _saved(own: Owner, name: str) -> Any:
    if isinstance(own[-1], OpFrame):
        frame = own[-1]
        if name in frame.saved:
            return restore(frame.saved[name], own[OWN_SLOT], own if name == "z" else None)
        return frame.constants.get(name)
    value = swept_values(own, OPS.ops[op_and_flags(own)[0]]).get(name)
    return wrap(value) if type(value) is np.ndarray else value
