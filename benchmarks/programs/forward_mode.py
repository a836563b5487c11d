"""Derivatives of the programs along a direction, in forward mode.

Names that the sides provide if they can:

- ``jvp``: the transform of a function;
- ``slope``: the same by dual tensors.
"""

from typing import Any

from .cases import Workload
from .losses import PROGRAMS

SIZES = {
    "chain": ("n=1", "n=8", "n=1000"),
    "mlp": ("128x64-256-256-10",),
    "lse": ("n=10000", "n=160000"),
    "gmm": ("d=10 K=25", "d=32 K=25"),
    "llsq": ("n=1024",),
    "ode": ("n=1000 s=100", "n=100000 s=10"),
}


def along(program: Workload, name: str) -> Workload:
    """The derivative of a program along its own arguments, by a function of that name."""

    def slope(xp: Any, *arrays: Any, **constants: Any) -> Any:
        def of_differentiated(*parts: Any) -> Any:
            whole = list(arrays)
            for i, part in zip(program.wrt, parts, strict=True):
                whole[i] = part
            return program.loss(xp, *whole, **constants)

        at = tuple(arrays[i] for i in program.wrt)
        found = getattr(xp, name)(of_differentiated, at, at)
        return found if name == "slope" else found[1]

    slope.__name__ = f"{name}_of_{program.name}"
    labels = SIZES[program.name]
    sizes = tuple(size for size in program.sizes if size.label in labels)
    return Workload(
        slope,
        program.draw,
        (),
        quick=program.quick,
        sizes=sizes,
        group="forward",
        needs=(*program.needs, name),
        how="forward",
    )


FORWARD = tuple(
    along(program, name)
    for name in ("jvp", "slope")
    for program in PROGRAMS
    if program.name in SIZES and (name == "jvp" or program.name in ("chain", "lse"))
)
