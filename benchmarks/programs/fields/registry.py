"""What programs of other fields use, and where they are entered."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Function = Callable[..., Any]
Arrays = tuple[np.ndarray, ...]
Draw = Callable[[np.random.Generator], Arrays]


@dataclass(frozen=True)
class Program:
    """A function of a library and arrays, and how its arrays are drawn."""

    name: str
    field: str
    function: Function
    draw: Draw
    argnums: int | tuple[int, ...] = 0
    tolerance: float = 1e-9
    """How far apart, relative to the largest element, rounding alone may bring two gradients."""

    def arrays(self) -> Arrays:
        """The arguments: the same in every process."""
        return self.draw(np.random.default_rng(sum(map(ord, self.name))))


@dataclass(frozen=True)
class Library:
    """What the programs use."""

    name: str
    np: Any
    scan: Function
    fori_loop: Function
    special: Any
    solve_triangular: Function
    """As in SciPy: ``(matrix, right, lower=True)``."""
    add_at: Function
    """A copy of an array with values added at indices, several times where one occurs so often."""
    array: Function
    """An array of computed numbers; ``numpy.array`` asks for their values."""
    bincount: Function
    """Sums of weights by index: ``(index, weights, length)``."""
    expm: Function
    running_maximum: Function
    """The largest number up to each place of a vector."""
    value_and_grad: Callable[..., Function]
    """A compiled function that returns the value and the gradients: ``(function, argnums)``."""
    asarray: Function
    """What an argument is given as."""

    def prepare(self, program: Program) -> Callable[[], tuple[Any, Any]]:
        """A call for value and gradients of a program."""
        run = self.value_and_grad(partial(program.function, self), program.argnums)
        arrays = [self.asarray(array) for array in program.arrays()]
        return lambda: run(*arrays)


def as_numbers(result: tuple[Any, Any]) -> tuple[float, np.ndarray]:
    """The value, and the gradients as one vector: by real parts, then by imaginary ones."""
    value, gradients = result
    several = gradients if isinstance(gradients, tuple) else (gradients,)
    return float(value), np.concatenate([part for g in several for part in parts_of(g)])


def parts_of(array: Any) -> list[np.ndarray]:
    """The real and imaginary parts of an array as vectors; real ones have one of them."""
    flat = np.ravel(np.asarray(array))
    return [flat.real, flat.imag] if np.iscomplexobj(flat) else [flat]


PROGRAMS: dict[str, Program] = {}


def program(draw: Draw, **more: Any) -> Callable[[Function], Function]:
    """Enter a function under its own name; its file says the field (a decorator)."""

    def enter(function: Function) -> Function:
        name = function.__name__.replace("_", " ")
        field = function.__module__.rpartition(".")[2].replace("_", " ")
        assert name not in PROGRAMS
        PROGRAMS[name] = Program(name, field, function, draw, **more)
        return function

    return enter


def of_tapegrad(jit: bool = True) -> Library:
    """NumPy's own functions, which tensors take over, and the loops of tapegrad."""
    import tapegrad as tg

    def add_at(array: Any, index: Any, values: Any) -> Any:
        result = tg.as_tensor(array).copy()
        np.add.at(result, index, values)
        return result

    def bincount(index: Any, weights: Any, length: int) -> Any:
        return np.bincount(index, weights=weights, minlength=length)

    def value_and_grad(function: Function, argnums: int | tuple[int, ...]) -> Function:
        return tg.value_and_grad(tg.jit(function) if jit else function, argnums)

    return Library(
        name="tapegrad",
        np=np,
        scan=tg.scan,
        fori_loop=tg.fori_loop,
        special=tg.special,
        solve_triangular=tg.linalg.solve_triangular,
        add_at=add_at,
        array=tg.array,
        bincount=bincount,
        expm=tg.linalg.expm,
        running_maximum=np.maximum.accumulate,
        value_and_grad=value_and_grad,
        asarray=np.asarray,
    )


def of_jax() -> Library:
    """The same of JAX; ``ImportError`` where it is not installed."""
    import jax
    import jax.numpy
    import jax.scipy.linalg
    import jax.scipy.special

    jax.config.update("jax_enable_x64", True)

    def add_at(array: Any, index: Any, values: Any) -> Any:
        return jax.numpy.asarray(array).at[index].add(values)

    def bincount(index: Any, weights: Any, length: int) -> Any:
        return jax.numpy.bincount(index, weights=weights, length=length)

    def value_and_grad(function: Function, argnums: int | tuple[int, ...]) -> Function:
        differentiated = jax.value_and_grad(function, argnums)

        @jax.jit
        def run(*arrays: Any) -> Any:
            value, gradients = differentiated(*arrays)
            # JAX's are the conjugates of the directions of steepest ascent
            return value, jax.tree.map(jax.numpy.conj, gradients)

        return lambda *arrays: jax.block_until_ready(run(*arrays))

    return Library(
        name="JAX",
        np=jax.numpy,
        scan=jax.lax.scan,
        fori_loop=jax.lax.fori_loop,
        special=jax.scipy.special,
        solve_triangular=jax.scipy.linalg.solve_triangular,
        add_at=add_at,
        array=jax.numpy.array,
        bincount=bincount,
        expm=jax.scipy.linalg.expm,
        running_maximum=jax.lax.cummax,
        value_and_grad=value_and_grad,
        asarray=jax.numpy.asarray,
    )
