"""Regions of recorded programs, compiled."""

from __future__ import annotations

import itertools
import math
import sys
import types
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.saved_values import check_savable
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.forks import process_lock
from tapegrad.kernels import native
from tapegrad.replay.forms import COMPLEX, FLOATS, OtherShapeError
from tapegrad.replay.helpers import (
    as_integer,
    bins,
    checked_index,
    checked_indices,
    largest,
    places,
    running_places,
)
from tapegrad.replay.program import Program, depending
from tapegrad.replay.writer import Writer
from tapegrad.transform.function import gradient, njit, value_alone
from tapegrad.transform.functions import scalar_ops
from tapegrad.transform.recording import check
from tapegrad.transform.rules.numpy_functions import (
    convolutions,
    decompositions,
    exponentials,
    factors,
    finite_matrices,
    fourier,
    hermitian,
)
from tapegrad.transform.rules.numpy_functions.stacks import stacked_product, stacked_product_t


class Region:
    """A program, or a part of one, that is compiled.

    Parameters
    ----------
    program
        What it computes.

    Raises
    ------
    NotRecordedError
        If a value has no compiled form.

    Attributes
    ----------
    program
        As above.
    text
        The compiled function.
    most
        How often the longest loop of Python runs that was recorded.
    loops
        The number of its loop nests.
    nest_of
        The number of the loop nest that computes a value.
    in_python
        The values that functions without a compiled form return, in Python.
    constants
        The arrays and numbers that are its last arguments.
    function
        That function, of tensors and arrays.
    value
        The same of arrays alone, compiled with vector math.
    decides_by_values
        Whether it raises `OtherShapeError` if values lead to other shapes than the recorded ones.
    scalar
        The type of its result if that is one number, None otherwise.
    """

    def __init__(self, program: Program) -> None:
        writer = Writer(program)
        self.program = program
        self.text = writer.source()
        self.most = writer.most
        self.loops = writer.text.nests
        self.nest_of = writer.text.nest_of
        self.in_python = writer.text.in_python
        self.constants = writer.text.constants
        self.decides_by_values = program.decides_by_values()
        self._constant_tensors = [
            wrap(constant) if isinstance(constant, np.ndarray) and constant.ndim else constant
            for constant in self.constants
        ]
        self.function = compiled_text(self.text)
        self.value = value_of(self.function)
        self.scalar: Any = None
        if len(program.outputs) == 1 and not program.outputs[0].shape:
            self.scalar = program.outputs[0].dtype.type
        self._depending: dict[tuple[bool, ...], list[bool]] = {}  # by which arguments are tracked
        self._has_backward = False
        self._gradients: dict[tuple[int, ...], Any] = {}

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results for arguments: tensors, arrays and numbers.

        They are tensors if an argument is one that requires grad.
        """
        args = [*map(as_given, leaves), *self.constants]
        tracked = tuple(map(is_tracked, leaves))
        depends_on = self._depending.get(tracked)
        if depends_on is None:
            depends_on = self._depending[tracked] = depending(self.program, tracked)
        needs_record = any(depends_on)
        if needs_record and not self._has_backward:
            check(self.function, tuple(args))  # the backward pass would raise it
            self._has_backward = True
        if needs_record and self.scalar is None:  # of a number, the gradient is computed now
            for leaf in leaves:
                if isinstance(leaf, Tensor):
                    check_savable(leaf)
        if not needs_record:
            return self.typed(self.value(*map(_untracked, args)))
        if MODE.is_plain:  # writes to the memory of these are counted, so that it is not copied
            args = [
                *(
                    leaf if _is_array_of(arg, leaf) else arg
                    for arg, leaf in zip(args, leaves, strict=False)
                ),
                *self._constant_tensors,
            ]
        found = self.typed(self.function(*args))
        pairs = zip(found, depends_on, strict=True)
        return [value if depends else _untracked(value) for value, depends in pairs]

    def typed(self, found: Any) -> list[Any]:
        """Return the results of compiled code as values of the right types."""
        outputs = self.program.outputs
        values = [found] if len(outputs) == 1 else [*found]
        for k, (value, node) in enumerate(zip(values, outputs, strict=True)):
            if not isinstance(value, Tensor):
                values[k] = value if node.shape else node.dtype.type(value)
            elif value.dtype != node.dtype:  # compiled code returned a float
                values[k] = value.astype(node.dtype)
        return values

    def as_results(self, value: Any, gradients: Sequence[Any], places: Sequence[int]) -> Any:
        """Return a value and gradients, numbers among them as NumPy's of the right dtypes."""
        inputs = self.program.inputs
        found = [
            gradient if type(gradient) is np.ndarray else inputs[place].dtype.type(gradient)
            for gradient, place in zip(gradients, places, strict=True)
        ]
        return self.scalar(value), found

    def are_arrays(self, places: Sequence[int]) -> bool:
        """Whether some arguments are arrays, and no numbers."""
        return all(self.program.inputs[place].shape for place in places)

    def gradient(self, places: tuple[int, ...]) -> Any:
        """Return the compiled value and gradient, None if there is none.

        Parameters
        ----------
        places
            The arguments with respect to which the one result is differentiated.
        """
        found = self._gradients.get(places)
        if found is None:
            outputs = self.program.outputs
            inputs = [self.program.inputs[place] for place in places]
            if places and len(outputs) == 1 and not outputs[0].shape:
                if outputs[0].dtype in FLOATS and all(x.dtype in _INEXACT for x in inputs):
                    found = gradient(self.function, places, True, "value_and_grad", False)
                    self._gradients[places] = found
        return found


def as_tensors(value: Any, gradients: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
    """Return a value and gradients as tensors."""
    return wrap(np.asarray(value)), [wrap(np.asarray(gradient)) for gradient in gradients]


def as_given(leaf: Any) -> Any:
    """Return an argument as compiled code takes it: contiguous, and numbers for 0-d arrays."""
    if is_tracked(leaf):
        if leaf.ndim == 0:
            return leaf.reshape(1)[0]
        return leaf if leaf._a.flags.c_contiguous else leaf.clone()
    if isinstance(leaf, Tensor):
        leaf = leaf._a
    if isinstance(leaf, np.ndarray):
        return leaf.item() if leaf.ndim == 0 else np.ascontiguousarray(leaf)
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def _is_array_of(arg: Any, leaf: Any) -> bool:
    """Whether an argument of compiled code is the array of a tensor that records may save."""
    return isinstance(leaf, Tensor) and arg is leaf._a and not leaf.is_inference()


def _untracked(value: Any) -> Any:
    """Return a value of a compiled function as an array or number, if it is a tensor."""
    return as_given(value._a) if isinstance(value, Tensor) else value


def is_tracked(leaf: Any) -> bool:
    """Whether a value is a tensor whose use is recorded now."""
    return isinstance(leaf, Tensor) and leaf._is_tracked and MODE.recording


def value_of(function: Any) -> Any:
    """Return what computes the value of a compiled function for arrays."""
    return value_alone(function)


_compiled = njit(error_model="numpy")
_INEXACT = (*FLOATS, COMPLEX)
_MOST = 256  # functions that are kept although no recording has them, such as those of a loop
# compiled functions by their texts: those in use, and the last ones, in the order of their use
_functions: WeakValueDictionary[str, Any] = WeakValueDictionary()
_last: dict[str, Any] = {}
_numbers = itertools.count()
_lock = process_lock()


def compiled_text(text: str) -> Any:
    """Return the compiled function of a text; equal texts have one."""
    with _lock:
        found = _functions.get(text)
        if found is None:
            # machine code names it, and another process finds it (`codegen.store`)
            module = types.ModuleType("tapegrad_generated_recording")
            module.__dict__.update(
                compiled=_compiled,
                OtherShapeError=OtherShapeError,
                math=math,
                np=np,
                scalar_ops=scalar_ops,
                tg=sys.modules["tapegrad"],
                determinant=finite_matrices.determinant,
                expm_of_floats=exponentials.expm_of_floats,
                eigh_of_floats=decompositions.eigh_of_floats,
                eigh_of_parts=hermitian.eigh_of_parts,
                pinv_of_floats=decompositions.pinv_of_floats,
                qr_of_floats=decompositions.qr_of_floats,
                thin_svd_of_floats=decompositions.thin_svd_of_floats,
                factored_inverse=factors.factored_inverse,
                factored_logarithm=factors.factored_logarithm,
                factored_sign=factors.factored_sign,
                factored_solution=factors.factored_solution,
                factored_solution_t=factors.factored_solution_t,
                lu_factors=factors.lu_factors,
                stacked_cholesky=factors.stacked_cholesky,
                triangle_solution=factors.triangle_solution,
                full_convolution=convolutions.full_convolution,
                valid_correlation=convolutions.valid_correlation,
                fourier_of_pairs=fourier.fourier_of_pairs,
                fourier_adjoint_of_pairs=fourier.fourier_adjoint_of_pairs,
                half_fourier_to_pairs=fourier.half_fourier_to_pairs,
                real_adjoint_of_pairs=fourier.real_adjoint_of_pairs,
                real_fourier_of_pairs=fourier.real_fourier_of_pairs,
                whole_fourier_to_pairs=fourier.whole_fourier_to_pairs,
                stacked_product=stacked_product,
                stacked_product_t=stacked_product_t,
                as_integer=as_integer,
                bins=bins,
                running_places=running_places,
                checked_index=checked_index,
                checked_indices=checked_indices,
                largest=largest,
                places=places,
            )
            filename = f"<tapegrad jit {next(_numbers)}>"
            native.show(module, filename, text)
            exec(compile(text, filename, "exec"), module.__dict__)
            found = _functions[text] = _compiled(module.__dict__["program"])
        _last.pop(text, None)
        _last[text] = found
        while len(_last) > _MOST:
            del _last[next(iter(_last))]
    return found
