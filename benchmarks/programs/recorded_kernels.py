"""The kernels that ops on tensors of a device launch, without a device.

Ops run on arrays of the host that stand for those of a device; launches are noted instead of done.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numba
import numpy as np

import tapegrad as tg
from tapegrad.cuda import memory
from tapegrad.cuda import recording as started_again
from tapegrad.cuda.numeric import codegen, expressions
from tapegrad.eager import devices
from tapegrad.ops.table.kinds import Elementwise, Reduction
from tapegrad.ops.table.op import TABLE

Launch = tuple[Any, tuple[Any, ...]]
SEVERAL = "several ops"
JITTED = "jitted"
SUMS_OF_PRODUCTS = "sums of products"


class Bytes(np.ndarray):
    """Memory of the host that stands for that of a device."""

    @property
    def device_ctypes_pointer(self) -> Any:
        return ctypes.c_size_t(self.ctypes.data)

    def copy_to_device(self, source: Any) -> None:
        self[...] = source

    def copy_to_host(self, target: Any = None) -> np.ndarray:
        return np.zeros(self.shape, self.dtype)  # what kernels would have computed


WHOLE: dict[str, Callable[[tg.Tensor], tg.Tensor]] = {
    "quotient": lambda k: k // 2 + 2 // k,
    "remainder": lambda k: k % 2,
    "power": lambda k: k**3,
    "comparison": lambda k: (k > 1) | (k == 0) & ~(k < 2),
    "sum": lambda k: tg.sum(k, axis=0) + tg.count_nonzero(k, axis=0) + tg.max(k, axis=0),
    "floats": lambda k: tg.sin(k) / 2,
}


def chain(x: tg.Tensor, steps: int = 10) -> tg.Tensor:
    z = x
    for _ in range(steps):
        z = tg.sin(z) * 1.01 + z
    return z


def layer_norm(x: tg.Tensor) -> tg.Tensor:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / tg.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)


FUSED: dict[str, Callable[..., tg.Tensor]] = {
    SUMS_OF_PRODUCTS: lambda x: (x * 3.0 + x) * x - x,
    "sin": chain,
    "layer norm": layer_norm,
    "softmax": lambda x: tg.special.softmax(x, axis=1),
    "gelu": lambda x: 0.5 * x * (1.0 + tg.special.erf(x * 0.7)),
    "views": lambda x: tg.exp(x.T[::2]) * x[:1].T[::2] + tg.where(x > 0.5, x, 0.0).T[::2],
    "sum": lambda x: tg.square(x * 2.0 - 1.0).sum(axis=0),
}


# with kernels as long as those of functions that are recorded for a device
OF_JITTED: dict[str, Callable[..., tg.Tensor]] = {
    "sin": lambda x: chain(x, 25),
    "softmax": FUSED["softmax"],
}


class Recorder:
    """Notes launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def start(self, kernel: codegen.Kernel, grid: Any, block: Any, *args: Any) -> None:
        """Note a launch in place of doing it."""
        self.launches.append((kernel, args))


def programs() -> Iterator[tuple[str, str, Callable[..., Any], list[tuple[int, ...]]]]:
    """Yield the kind of an op, its name, a call of it, and the shapes of its arguments."""
    for name, op in TABLE.items():
        if isinstance(op, Elementwise):
            yield "elementwise", name, op.public, [(64, 3)] * len(op.arguments)
            if op.names:
                yield (
                    "elementwise, strided",
                    name,
                    _strided(op.public),
                    [(64, 3)] * len(op.arguments),
                )
        elif isinstance(op, Reduction):
            for axis in (None, 0, 1, (0, 2)):
                yield "reduction", name, lambda x, f=op.public, a=axis: f(x, axis=a), [(5, 600, 7)]
    places = np.array([0, 2, 0])
    yield "product", "matmul", tg.matmul, [(33, 20), (20, 9)]
    yield "product", "matmul", tg.matmul, [(2, 33, 20), (20, 9)]
    yield "scan", "cumsum", lambda x: tg.cumsum(x, 0), [(600, 2)]
    yield "scan", "cumsum", tg.cumsum, [(600,)]
    yield "scan", "cummax", tg.cummax, [(600,)]
    yield "sort", "sort", tg.sort, [(7, 30)]
    yield "index", "gather", lambda x: x[places], [(5, 4)]
    yield "index", "gather", lambda x: x[:, places, 1:], [(5, 4, 3)]
    yield "index", "scatter_add", lambda x: tg.scatter_add(x, (5,), (places,)), [(3,)]
    yield "index", "put", lambda x, y: TABLE["put"].public(x, y, places), [(5, 4), (3, 4)]
    for name, call in WHOLE.items():
        yield "integers", name, lambda x, f=call: f(x.astype(np.int64)).astype(x.dtype), [(5, 4)]
    for name, call in FUSED.items():
        yield SEVERAL, name, call, [(64, 3)]
    for name, call in OF_JITTED.items():
        yield JITTED, name, call, [(64, 3)]
    yield "copy", "concatenate", lambda x, y: tg.concatenate([x, y], 1), [(5, 4), (5, 3)]


def _strided(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of transposed and repeated views of its arguments."""
    return lambda x, *others: function(x.T, *(y[:1].T for y in others))


def kernels(cuda: Any) -> Iterator[tuple[str, str, bool, Any, tuple[Any, ...]]]:
    """Yield every kernel once: kind and name of an op, whether in float32, kernel, signature."""
    seen = set()
    for group, name, kernel, args, dtype in launches(cuda):
        signature = tuple(map(_typeof, args))
        key = (id(kernel), signature)
        if key not in seen:
            seen.add(key)
            is_single = dtype == np.float32 and group != "integers"
            yield group, name, is_single, kernel, signature


def launches(cuda: Any) -> Iterator[tuple[str, str, Any, tuple[Any, ...], Any]]:
    """Yield what every op launches, forward and backward."""
    for group, name, call, shapes in programs():
        for dtype in (np.float64,) if "strided" in group else (np.float32, np.float64):
            recorder = Recorder()
            is_jitted = group == JITTED
            again = started_again.recording(memory.Pool()) if is_jitted else nullcontext()
            with recording(cuda, recorder, are_known=group in (SEVERAL, JITTED)), again:
                tensors = [
                    tg.tensor(np.ones(shape, dtype), device="cuda", requires_grad=True)
                    for shape in shapes
                ]
                kept = [z := call(*tensors)]  # what is dropped is not computed
                if z.requires_grad:
                    seed = tg.tensor(np.ones(z.shape, z.dtype), device="cuda")
                    kept += tg.autograd.grad(z, tensors, seed, allow_unused=True)
                memory.compute_all()
                del kept
            for kernel, args in recorder.launches:
                yield group, name, kernel, args, dtype


@contextmanager
def recording(cuda: Any, recorder: Recorder, are_known: bool | None = None) -> Iterator[None]:
    """Note launches, and take memory of the host.

    With `are_known`, kernels of several ops are launched at once, without it never.
    """
    is_known = expressions.is_known if are_known is None else lambda key: are_known
    with (
        mock.patch.object(expressions, "is_known", is_known),
        mock.patch.multiple(codegen, require=lambda: cuda, most_blocks=lambda: 64),
        mock.patch.object(codegen.Kernel, "run", lambda *given: recorder.start(*given)),
        mock.patch.object(devices, "require", return_value=cuda),
        mock.patch.object(memory.Pool, "_allocate", lambda _, size: _bytes(size)),
    ):
        yield


def _bytes(size: int) -> Bytes:
    return np.zeros(size, np.uint8).view(Bytes)


def _typeof(value: Any) -> Any:
    if isinstance(value, memory.Elements):
        return numba.types.Array(numba.from_dtype(value.dtype), 1, "C")
    return numba.int64 if isinstance(value, int) else numba.from_dtype(np.dtype(type(value)))
