"""Code for the sweep: the op table in compiled form, and kernels and handlers by address."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tapegrad.kernels import native
from tapegrad.kernels.sources import sources
from tapegrad.kernels.structs import address_of
from tapegrad.tape import layout
from tapegrad.tape.layout import (
    KERNEL_INPUTS,
    KIND_PRODUCTS,
    KIND_PYTHON,
    OP_LAYOUT,
    OP_VALUES,
    OP_WORDS,
)

OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}}


class SweptOp(Protocol):
    """The sweep's interface to an op."""

    name: str

    def kernel(self, dtype: int, position: int) -> int:
        """Return the address of the compiled partial for one input."""


class OpTable:
    """Codes, kinds and owner layouts of all ops, and the kernels compiled so far."""

    def __init__(self) -> None:
        self.ops: list[Any] = []
        self.inputs: list[int] = []  # the same as in `meta`, for Python
        self.saves: list[bool] = []
        self.products: set[int] = set()  # codes of ops of KIND_PRODUCTS
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._set(np.zeros((256, OP_WORDS), np.int64), np.zeros((256, 2, KERNEL_INPUTS), np.int64))

    def _set(self, meta: np.ndarray, kernels: np.ndarray) -> None:
        # a running sweep may still read the previous tables
        self._kept.append((meta, kernels))
        self.meta, self.kernels = meta, kernels
        self.meta_address, self.kernels_address = address_of(meta), address_of(kernels)

    def register(self, op: SweptOp) -> int:
        """Return a code for a new op; until `describe`, the sweep calls Python for it.

        Its records have at most two inputs or are n-ary.
        """
        code = len(self.ops)
        if code == len(self.meta):
            self._set(
                np.concatenate([self.meta, np.zeros_like(self.meta)]),
                np.concatenate([self.kernels, np.zeros_like(self.kernels)]),
            )
        self.ops.append(op)
        self.inputs.append(0)
        self.saves.append(False)
        self.describe(code, KIND_PYTHON, 2)
        return code

    def describe(
        self,
        code: int,
        kind: int,
        inputs: int,
        values: tuple[int, ...] = (),
        layout_index: int = -1,
        traits: int = 0,
    ) -> None:
        """Set an op's kind, inputs, traits, and its owner's indices of z, a0, a1, a2 (or -1)."""
        self.inputs[code] = inputs
        self.saves[code] = bool(traits & layout.TRAIT_SAVES)
        if kind == KIND_PRODUCTS:
            self.products.add(code)
        row = self.meta[code]
        row[0], row[1] = kind, inputs
        row[OP_VALUES : OP_VALUES + 4] = -1
        row[OP_VALUES : OP_VALUES + len(values)] = values
        row[OP_LAYOUT] = layout_index
        row[layout.OP_TRAITS] = traits

    def compile(self, code: int, dtype: int, position: int) -> None:
        """Compile a kernel and enter its address."""
        self.kernels[code, dtype, position] = self.ops[code].kernel(dtype, position)


class PythonOp:
    """Entry of the op table for records that are processed by Python."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kernel(self, dtype: int, position: int) -> int:
        """Raise, since there is no compiled partial."""
        raise TypeError(f"{self.name} has no compiled partial")


OPS = OpTable()
OPS.register(PythonOp("leaf"))  # row 0


@functools.cache
def _sources() -> bytes:
    own = "tape/layout.py", "tape/compiled"
    return b"".join(sources(*own, "kernels/intrinsics.py", "kernels/structs.py"))


def _address(module: str, name: str, arguments: int) -> int:
    module = f"tapegrad.tape.compiled.{module}"
    return native.compiled(module, name, "void", arguments, _sources(), **OPTIONS)


@functools.cache
def service(module: str, name: str, nogil: bool = False) -> Callable[[int], None]:
    """Return a compiled function of a state's address: ``sweep``, ``mark`` or ``release``.

    With `nogil`, it runs without the GIL.
    """
    prototype = ctypes.CFUNCTYPE if nogil else ctypes.PYFUNCTYPE
    return prototype(None, ctypes.c_int64)(_address(module, name, 1))


@functools.cache
def handler(number: int) -> int:
    """Return the address of a handler of the sweep (`tapegrad.tape.compiled.contributions`)."""
    if number == layout.HANDLER_TANGENT:
        return _address("tangents", "strided_tangent", 7)
    names = {
        layout.HANDLER_STRIDED: "strided",
        layout.HANDLER_CHECK: "check",
        layout.KIND_FLAT: "flat",
        layout.KIND_VIEW: "view",
        layout.KIND_CAST: "cast",
        layout.KIND_PRODUCTS: "products",
    }
    return _address("contributions", names[number], 7)
