"""Which outputs of a record a sweep uses, and which elements of them.

A cotangent of 0 does not tell whether an element is used: it may as well be multiplied by 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.ops.table.kinds import View
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS, PythonOp
from tapegrad.tape.layout import OWN_AVAL, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import Owner
from tapegrad.tape.sweep import Sweep

SELECT = OPS.register(PythonOp("select"))  # of one output of a record with several


class UsedOutputs:
    """The outputs of a record that have a cotangent, by number.

    Parameters
    ----------
    owner
        The owner of the record.
    given
        The cotangents.
    sweep
        The sweep that reached the record; None if it is not known.
    """

    __slots__ = ("_given", "_owner", "_sweep")

    def __init__(self, owner: Owner, given: dict[int, Any], sweep: Sweep | None) -> None:
        self._owner = owner
        self._given = given
        self._sweep = sweep

    def __contains__(self, k: int) -> bool:
        return k in self._given

    def elements(self, k: int) -> np.ndarray:
        """Return which elements of an output may be used, as an array of booleans."""
        shape = self._owner[-1].outputs[k][0]
        sweep = self._sweep
        if k not in self or sweep is None:
            return np.full(shape, k in self)
        found = np.zeros(shape, bool)
        numbers = np.arange(found.size).reshape(shape)
        for _, owner in sweep.readers(self._owner[OWN_SLOT]):
            if owner is not None and owner[-1].k == k:
                _note_read(sweep, owner, numbers, found.reshape(-1))
        return found


def _note_read(sweep: Sweep, read: Owner, numbers: np.ndarray, found: np.ndarray) -> None:
    """Note which elements of a record are used.

    Views use nothing themselves. What else reads a record may use all its elements, and so may
    whoever gave a cotangent to it.

    Parameters
    ----------
    sweep, read
        The sweep, and the owner of the record.
    numbers
        The numbers of the elements of the record.
    found
        Whether an element is used, by its number.
    """
    if read[OWN_SLOT] in sweep.roots:
        found[numbers] = True
    for code, owner in sweep.readers(read[OWN_SLOT]):
        op = OPS.ops[code]
        if owner is None:
            if isinstance(op, PythonOp):  # it may have been run without a mark
                found[numbers] = True
        elif isinstance(op, View) and _dtype(owner) == _dtype(read):
            _note_read(sweep, owner, op.function(numbers, **owner[OWN_INPUTS + 1]), found)
        else:
            found[numbers] = True


def _dtype(owner: Owner) -> np.dtype:
    return AVALS.dtypes[owner[OWN_AVAL]]
