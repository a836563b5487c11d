"""Recordings of functions, compiled."""

from __future__ import annotations

import linecache
import sys
import threading
from typing import Any

import numpy as np

from tapegrad.pytrees import Build
from tapegrad.replay.helpers import checked_index, checked_indices, largest
from tapegrad.replay.products import product_nn
from tapegrad.replay.program import Program
from tapegrad.transform.function import gradient, njit, value_alone
from tapegrad.transform.recording import check


class Compiled:
    """A recording of a function, compiled.

    Attributes
    ----------
    program
        What it computes; None if it runs op by op.
    reason
        Why it runs op by op, "" if it is compiled.
    text
        The compiled function.
    function
        That function, of tensors and arrays.
    value
        The same of arrays alone, compiled with vector math.
    is_single
        Whether it returns one value, which is computed.
    scalar
        The type of that value if it is a number.
    """

    def __init__(self) -> None:
        self.program: Program | None = None
        self.reason = ""
        self.text = ""
        self.function: Any = None
        self.value: Any = None
        self.constants: list[Any] = []
        self.loops = 0
        self.results: list[tuple[int | None, Any]] = []  # places among the outputs, or constants
        self.build: Build = lambda leaves: leaves[0]
        self.captured: list[Any] = []  # tensors from outside that did not require grad
        self.is_single = False
        self.scalar: Any = None
        self._has_backward = False
        self._gradients: dict[tuple[int, ...], Any] = {}
        self._direct_gradients: dict[tuple[int, ...], Any] = {}

    def check_backward(self, args: list[Any]) -> None:
        """Raise an error if the backward pass of a call with tensors would, the first time."""
        if not self._has_backward:
            check(self.function, tuple(args))
            self._has_backward = True

    def set_function(self, function: Any) -> None:
        """Note the function."""
        self.function, self.value = function, value_of(function)

    def run_op_by_op(self, reason: str) -> None:
        """Note why the function is not compiled."""
        self.program = None
        self.reason = reason

    def direct_gradient(self, numbers: list[int], count: int) -> Any:
        """Return the compiled value and gradient for arguments that are leaves themselves.

        Parameters
        ----------
        numbers
            The positions of the differentiated arguments.
        count
            The number of arguments.
        """
        key = tuple(numbers)
        found = self._direct_gradients.get(key)
        if found is None:
            places = tuple(n % count for n in key if -count <= n < count)
            if len(set(places)) == len(key):
                found = self._direct_gradients[key] = self.gradient(places)
        return found

    def gradient(self, places: tuple[int, ...]) -> Any:
        """Return the compiled value and gradient, None if there is none.

        Parameters
        ----------
        places
            The differentiated arguments of the program.
        """
        found = self._gradients.get(places)
        if self.program is None:
            return None
        if found is None:
            outputs = self.program.outputs
            inputs = [self.program.inputs[place] for place in places]
            if len(self.results) == 1 and outputs[0].shape == () and places:
                if all(node.dtype == np.float64 for node in (*inputs, outputs[0])):
                    found = gradient(self.function, places, True, "value_and_grad", False)
                    self._gradients[places] = found
        return found


def value_of(function: Any) -> Any:
    """Return what computes the value of a compiled function for arrays."""
    return value_alone(function)


_compiled = njit(error_model="numpy")
_functions: dict[str, Any] = {}  # compiled functions by their texts
_lock = threading.Lock()


def compiled_text(text: str) -> Any:
    """Return the compiled function of a text; equal texts have one."""
    with _lock:
        found = _functions.get(text)
        if found is None:
            filename = f"<tapegrad jit {len(_functions)}>"
            linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
            namespace: dict[str, Any] = {
                "compiled": _compiled,
                "np": np,
                "tg": sys.modules["tapegrad"],
                "product_nn": product_nn,
                "checked_index": checked_index,
                "checked_indices": checked_indices,
                "largest": largest,
                "__name__": "recorded",  # the text, not this module, is what its code depends on
            }
            exec(compile(text, filename, "exec"), namespace)
            found = _functions[text] = _compiled(namespace["program"])
    return found
