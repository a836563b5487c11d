"""Workloads: a loss over an array namespace, and everything needed to run it.

A loss takes the namespace ``xp``, then its arrays, then keyword constants such as a number of
steps. Any namespace with NumPy's names can run it: NumPy itself, tapegrad, ``jax.numpy``,
``autograd.numpy`` and, since it accepts ``axis=`` and ``keepdims=``, PyTorch. Functions that NumPy
lacks are provided by the side that runs the program (see ``peers.py``); a workload lists those
that some sides lack.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np

GROUPS = {
    "programs": "Programs",
    "loops": "Long loops of steps",
    "functions": "Functions with the user's own derivative",
    "hooks": "Hooks",
    "saved": "Hooks of saved values",
    "mutation": "Writing in place",
    "double": "Double backward",
    "modes": "Modes, forward alone",
    "transforms": "Batches, Jacobians and Hessians",
    "forward": "Forward mode",
    "complex": "Complex numbers",
    "njit": "Functions of numba",
}
"""Headings of the report."""


@dataclass(frozen=True)
class Size:
    """How large a workload is: arguments of its draw function and constants of its loss."""

    label: str
    draw: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loops:
    """A program as loops for numba, which take the arrays of a workload, then its constants."""

    primal: Callable[..., Any]
    """A plain function in numba's language."""
    by_hand: Callable[..., Any] | None = None
    """Value and gradients, written by hand and compiled."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the decorators of the primal, numba's and tapegrad's, are given."""
    alike: bool = True
    """Whether they compute in the way in which the loss does."""
    nested: Callable[[], Callable[..., Any]] | None = None
    """Where tapegrad differentiates within the program: makes that from tapegrad's functions."""


@dataclass(frozen=True)
class Workload:
    """A loss, how to draw its arguments, and the positions of those that are differentiated."""

    loss: Callable[..., Any]
    draw: Callable[..., tuple[np.ndarray, ...]]
    wrt: tuple[int, ...]
    quick: Size
    sizes: tuple[Size, ...]
    group: str = "programs"
    needs: tuple[str, ...] = ()
    """Names in the namespace without which a side takes no part."""
    how: Literal["grad", "backward", "forward"] = "grad"
    """Whether gradients are returned, accumulated in leaves, or not asked for."""
    leaf_hooks: bool = False
    """Whether leaves have a hook that runs after their gradients are accumulated."""
    loops: Loops | None = None
    """The same program for numba."""
    floor: Callable[..., Any] | None = None
    """Value and gradients of a program without loops for numba, written by hand and compiled."""

    @property
    def by_hand(self) -> Callable[..., Any] | None:
        """Value and gradients, written by hand and compiled."""
        return self.floor if self.loops is None else self.loops.by_hand

    @property
    def recorded(self) -> bool:
        """Whether it is a program to be recorded, not a feature of tensors."""
        return self.group in ("programs", "loops") or self.name == "black_scholes"

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.program.__name__

    @property
    def program(self) -> Callable[..., Any]:
        """What it is about: the loops, or the loss where there are none."""
        return self.loops.primal if self.loops else self.loss

    def make_inputs(self, size: Size, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Draw the arguments of the loss."""
        return self.draw(np.random.default_rng(seed), **size.draw)


@dataclass(frozen=True)
class Case:
    """A workload at one size, ready to be run by any side."""

    workload: Workload
    size: Size

    @cached_property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """The arguments of the loss."""
        return self.workload.make_inputs(self.size)

    @property
    def wrt(self) -> tuple[int, ...]:
        """Positions of the differentiated arguments."""
        return self.workload.wrt

    @property
    def label(self) -> str:
        """Workload and size, for people."""
        return f"{self.workload.name} {self.size.label}"

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What the loops are called with: the arrays, then the constants."""
        return *self.inputs, *self.size.constants.values()

    def loss(self, xp: Any) -> Callable[..., Any]:
        """The loss as a function of its arrays alone."""
        return partial(self.workload.loss, xp, **self.size.constants)
