"""The sides of a comparison: tapegrad, its peers, and plain NumPy for the primal alone.

A side knows its array namespace and how to turn a case into a ``Program``, the functions that are
timed. Libraries are imported when a side is first used, so that any subset may be installed.
"""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.measure.timing import Program

from .cases import Case, Loops
from .features import ignore
from .user_functions import functions


class Namespace:
    """An array namespace with some names added or replaced."""

    def __init__(self, module: Any, **names: Any):
        self._module = module
        self.__dict__.update(names)

    @staticmethod
    def iterate(step: Callable[[Any], Any], state: Any, steps: int) -> Any:
        """Apply a step so many times."""
        for _ in range(steps):
            state = step(state)
        return state

    @staticmethod
    def fold(step: Callable[[Any, Any], Any], state: Any, rows: Any) -> Any:
        """Apply a step for each row of an array."""
        for row in rows:
            state = step(state, row)
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Side(ABC):
    """A library that runs the workloads."""

    name: ClassVar[str]
    package: ClassVar[str]
    largest: ClassVar[float] = float("inf")
    """Elements in the differentiated inputs beyond which this side takes no part."""
    longest: ClassVar[float] = 10_000
    """Steps of a loop beyond which this side takes no part."""

    def available(self) -> bool:
        """Whether the library is installed."""
        return importlib.util.find_spec(self.package) is not None

    def suits(self, case: Case) -> bool:
        """Whether this side has what the case needs and is meant for its size."""
        if sum(case.inputs[i].size for i in case.wrt) > self.largest:
            return False
        if {**case.size.draw, **case.size.constants}.get("steps", 0) > self.longest:
            return False
        xp = self.namespace()
        return all(hasattr(xp, name) for name in case.workload.needs)

    @cached_property
    def module(self) -> Any:
        """The library itself."""
        return importlib.import_module(self.package)

    @abstractmethod
    def namespace(self) -> Any:
        """The arrays' namespace, with the names that the workloads ask of a side."""

    @abstractmethod
    def prepare(self, case: Case) -> Program:
        """The case in this library's hands: inputs converted, nothing run."""

    def trouble(self, case: Case) -> str | None:
        """Why a case that was prepared and called does not count, if so."""
        return None

    def to_numpy(self, array: Any) -> np.ndarray:
        """One of this side's results as a NumPy array."""
        return np.asarray(array)

    def steepest(self, gradient: Any) -> np.ndarray:
        """A gradient as a NumPy array: for complex inputs, the direction of steepest ascent."""
        return np.conj(self.to_numpy(gradient))

    def derivative(self, f: Callable[..., Any], *at: Any) -> tuple[Any, ...]:
        """The gradients of a function by all its arguments, as functions of them."""
        return self.module.grad(f, tuple(range(len(at))))(*at)


class NumPy(Side):
    """The primal in plain NumPy, for reference."""

    name = "NumPy primal"
    package = "numpy"

    def namespace(self) -> Any:
        """NumPy with the usual three-line logsumexp; what concerns gradients does nothing."""
        return Namespace(
            np,
            logsumexp=self.logsumexp,
            decay=lambda x: np.exp(-x),
            decay_in_context=lambda x: np.exp(-x),
            product=lambda x, y: x * y,
            sine_and_cosine=lambda x: (np.sin(x), np.cos(x)),
            own=np.copy,
            **self.special(),
            **dict.fromkeys(("watch_tensor", "watch_node", "retain_grad"), ignore),
            **dict.fromkeys(("packed", "no_grad", "inference_mode"), nullcontext),
        )

    @staticmethod
    def special() -> dict[str, Callable[..., Any]]:
        """Functions of SciPy, where it is installed."""
        found = importlib.util.find_spec("scipy")
        return {"erf": importlib.import_module("scipy.special").erf} if found else {}

    @staticmethod
    def logsumexp(x: np.ndarray, axis: int) -> np.ndarray:
        """Logarithm of the sum of exponentials along an axis."""
        top = np.max(x, axis=axis, keepdims=True)
        return np.log(np.sum(np.exp(x - top), axis=axis)) + np.squeeze(top, axis=axis)

    def prepare(self, case: Case) -> Program:
        """A forward only."""
        loss = case.loss(self.namespace())
        return Program(forward=lambda: loss(*case.inputs))


class TorchStyle(Side):
    """Tensors that record what happens to them: PyTorch, and tapegrad, which shares its names."""

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Any:
        """A tensor of this library with a copy of the array."""
        return self.module.tensor(array, requires_grad=requires_grad)

    def namespace(self) -> Any:
        """The library's own functions, some of the user, and what its tensors offer."""
        return Namespace(
            self.module,
            **functions(self.module),
            watch_tensor=lambda z: z.register_hook(ignore),
            watch_node=self.watch_node,
            retain_grad=lambda z: z.retain_grad(),
            packed=lambda: self.module.autograd.graph.saved_tensors_hooks(same, same),
            own=lambda x: x.clone(),
            derivative=self.derivative,
            slope=self.slope,
            **self.transforms(),
        )

    def slope(self, f: Callable[..., Any], at: Sequence[Any], along: Sequence[Any]) -> Any:
        """The derivative of a function along a direction, by dual tensors."""
        forward_ad = self.module.autograd.forward_ad
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(*map(forward_ad.make_dual, at, along))).tangent

    def transforms(self) -> dict[str, Callable[..., Any]]:
        """Transforms of functions."""
        raise NotImplementedError

    @staticmethod
    def watch_node(z: Any) -> None:
        """Hook the node that made a tensor, before and after it runs."""
        z.grad_fn.register_prehook(ignore)
        z.grad_fn.register_hook(ignore)

    def derivative(self, f: Callable[..., Any], *at: Any) -> tuple[Any, ...]:
        """The gradients of a function by all its arguments, recorded."""
        inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in at]
        return self.module.autograd.grad(f(*inputs), inputs, create_graph=True)

    def tensors(self, case: Case) -> list[Any]:
        """The inputs; those to be differentiated require a gradient."""
        return [self.tensor(a, i in case.wrt) for i, a in enumerate(case.inputs)]

    def prepare(self, case: Case) -> Program:
        """The forward records; the backward sweeps and lets the graph go."""
        loss = case.loss(self.namespace())
        tensors = self.tensors(case)
        inputs = [tensors[i] for i in case.wrt]
        if case.workload.how == "forward":
            return Program(lambda: loss(*tensors))
        if case.workload.leaf_hooks:
            for leaf in inputs:
                leaf.register_post_accumulate_grad_hook(ignore)
        grad, backward = self.module.autograd.grad, partial(self.accumulate, inputs)
        if case.workload.how == "grad":

            def backward(value):
                return grad(value, inputs)

        def total():
            value = loss(*tensors)
            return value, backward(value)

        return Program(lambda: loss(*tensors), backward, total)

    @staticmethod
    def accumulate(inputs: list[Any], value: Any) -> list[Any]:
        """The gradients as they are accumulated in leaves without any."""
        value.backward()
        gradients = [leaf.grad for leaf in inputs]
        for leaf in inputs:
            leaf.grad = None
        return gradients

    def to_numpy(self, array: Any) -> np.ndarray:
        """The values without the history."""
        return np.asarray(array.detach().numpy())

    def steepest(self, gradient: Any) -> np.ndarray:
        """The gradient, which is conjugate already."""
        return self.to_numpy(gradient)


def same(value: Any) -> Any:
    """The value."""
    return value


class Tapegrad(TorchStyle):
    """The library that these benchmarks are about."""

    name = "tapegrad"
    package = "tapegrad"

    def transforms(self) -> dict[str, Callable[..., Any]]:
        """Its own names; the product takes the function first, and a point and a vector after."""
        module = self.module
        names = ("vmap", "jacrev", "jacfwd", "hessian")
        return {
            **{name: getattr(module, name) for name in names},
            "gradient": module.grad,
            "hvp": lambda f, x, v: module.hvp(f)(x, v),
            "jvp": lambda f, at, along: module.jvp(f, tuple(range(len(at))))(*at, *along),
        }


class TapegradJit(Tapegrad):
    """Value and gradient of a function that is recorded and compiled."""

    name = "tapegrad.jit"

    longest = float("inf")
    most_in_python = 200
    """Steps of a loop from which on it is written with `tg.scan` or `tg.fori_loop`."""

    def suits(self, case: Case) -> bool:
        """Programs alone: other workloads measure features of tensors."""
        return case.workload.recorded and super().suits(case)

    def namespace(self) -> Any:
        """With the library's loops in the place of long ones of Python."""
        names = super().namespace()
        module, python = self.module, Namespace(None)

        def iterate(step, state, steps):
            if steps <= self.most_in_python:
                return python.iterate(step, state, steps)
            return module.fori_loop(0, steps, lambda _, state: step(state), state)

        def fold(step, state, rows):
            if len(rows) <= self.most_in_python:
                return python.fold(step, state, rows)
            return module.scan(lambda state, row: (step(state, row), None), state, rows)[0]

        def derivative(f, *at):
            return module.grad(f, tuple(range(len(at))))(*at)

        return Namespace(names, iterate=iterate, fold=fold, derivative=derivative)

    def prepare(self, case: Case) -> Program:
        """A total only: there is nothing to split."""
        recorded = self.module.jit(case.loss(self.namespace()))
        if case.workload.how == "forward":
            return Program(lambda: recorded(*case.inputs))
        value_and_grad = self.module.value_and_grad(recorded, argnums=case.wrt)
        self.recorded = recorded
        return Program(total=lambda: value_and_grad(*case.inputs))

    def trouble(self, case: Case) -> str | None:
        """What is not compiled."""
        if case.workload.how == "forward":
            return None
        how: str = self.recorded.inspect(*case.inputs)
        return how if how.startswith("op by op") else None

    def to_numpy(self, array: Any) -> np.ndarray:
        """Results of arrays are arrays."""
        return np.asarray(array)

    def steepest(self, gradient: Any) -> np.ndarray:
        """As the array itself: the programs have no complex numbers."""
        return np.asarray(gradient)


class Torch(TorchStyle):
    """PyTorch, eager."""

    name = "PyTorch"
    package = "torch"

    @cached_property
    def module(self) -> Any:
        """PyTorch on one thread."""
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        return torch

    def transforms(self) -> dict[str, Callable[..., Any]]:
        """Those of ``torch.func``."""
        return of_functional(importlib.import_module("torch.func"))


def of_functional(module: Any) -> dict[str, Callable[..., Any]]:
    """Transforms of a module with the names of JAX and ``torch.func``."""
    return {
        **{name: getattr(module, name) for name in ("vmap", "jacrev", "jacfwd", "hessian")},
        "gradient": module.grad,
        "hvp": lambda f, x, v: module.jvp(module.grad(f), (x,), (v,))[1],
        "jvp": module.jvp,
    }


class Autograd(Side):
    """HIPS autograd."""

    name = "HIPS autograd"
    package = "autograd"

    def namespace(self) -> Any:
        """Its NumPy, its logsumexp and primitives of our own."""
        extend = importlib.import_module("autograd.extend")
        special = importlib.import_module("autograd.scipy.special")
        decay = extend.primitive(lambda x: np.exp(-x))
        extend.defvjp(decay, lambda z, x: lambda g: -g * z)
        product = extend.primitive(lambda x, y: x * y)
        extend.defvjp(product, lambda z, x, y: lambda g: g * y, lambda z, x, y: lambda g: g * x)
        sine_and_cosine = extend.primitive(lambda x: (np.sin(x), np.cos(x)))
        extend.defvjp(sine_and_cosine, lambda z, x: lambda g: g[0] * z[1] - g[1] * z[0])
        return Namespace(
            importlib.import_module("autograd.numpy"),
            logsumexp=special.logsumexp,
            decay=decay,
            product=product,
            sine_and_cosine=sine_and_cosine,
            derivative=self.derivative,
            erf=special.erf,
        )

    def prepare(self, case: Case) -> Program:
        """``make_vjp`` runs the forward and returns the backward."""
        record = self.module.make_vjp(case.loss(self.namespace()), case.wrt)

        def forward():
            return record(*case.inputs)

        def total():
            pull_back, value = forward()
            return value, pull_back(1.0)

        return Program(forward, lambda graph: graph[0](1.0), total)


class Jax(Side):
    """What JAX eager and compiled have in common."""

    package = "jax"

    def namespace(self) -> Any:
        """``jax.numpy`` with its logsumexp and custom vjps."""
        jnp = importlib.import_module("jax.numpy")

        @self.module.custom_vjp
        def decay(x):
            return jnp.exp(-x)

        def decay_forward(x):
            z = jnp.exp(-x)
            return z, z

        @self.module.custom_vjp
        def product(x, y):
            return x * y

        @self.module.custom_vjp
        def sine_and_cosine(x):
            return jnp.sin(x), jnp.cos(x)

        def sine_and_cosine_forward(x):
            z = jnp.sin(x), jnp.cos(x)
            return z, z

        decay.defvjp(decay_forward, lambda z, g: (-g * z,))
        product.defvjp(lambda x, y: (x * y, (x, y)), lambda xy, g: (g * xy[1], g * xy[0]))
        sine_and_cosine.defvjp(sine_and_cosine_forward, lambda z, g: (g[0] * z[1] - g[1] * z[0],))
        return Namespace(
            jnp,
            logsumexp=self.module.nn.logsumexp,
            decay=decay,
            product=product,
            sine_and_cosine=sine_and_cosine,
            derivative=self.derivative,
            erf=self.module.scipy.special.erf,
            **of_functional(self.module),
        )

    def arrays(self, case: Case) -> list[Any]:
        """The inputs on the device."""
        return [self.module.device_put(a) for a in case.inputs]


class JaxJit(Jax):
    """JAX with value and gradient compiled into one program."""

    name = "jax.jit"
    longest = float("inf")

    def namespace(self) -> Any:
        """With a scan in the place of long loops, which would take minutes to compile."""

        def iterate(step, state, steps):
            state, _ = self.module.lax.scan(lambda z, _: (step(z), None), state, length=steps)
            return state

        def fold(step, state, rows):
            return self.module.lax.scan(lambda z, row: (step(z, row), None), state, rows)[0]

        return Namespace(super().namespace(), iterate=iterate, fold=fold)

    def prepare(self, case: Case) -> Program:
        """A total only: there is nothing to split."""
        if case.workload.how == "forward":
            forward, given = self.module.jit(case.loss(self.namespace())), self.arrays(case)
            return Program(lambda: self.module.block_until_ready(forward(*given)))
        value_and_grad = self.module.value_and_grad(case.loss(self.namespace()), argnums=case.wrt)
        compiled, arrays = self.module.jit(value_and_grad), self.arrays(case)
        return Program(total=lambda: self.module.block_until_ready(compiled(*arrays)))

    def second(self, case: Case, v: Any) -> Program:
        """The second derivative by the first argument times v, forward over reverse."""
        grad = self.module.grad(case.loss(self.namespace()))

        @self.module.jit
        def hvp(x, v, *others):
            return self.module.jvp(lambda x: grad(x, *others), (x,), (v,))[1]

        x, *others = self.arrays(case)
        v = self.module.device_put(v)
        return Program(lambda: self.module.block_until_ready(hvp(x, v, *others)))

    def hessian(self, case: Case) -> Program:
        """The second derivative by the first argument, as a matrix of its shapes."""
        hessian = self.module.jit(self.module.hessian(case.loss(self.namespace())))
        arrays = self.arrays(case)
        return Program(lambda: self.module.block_until_ready(hessian(*arrays)))


class JaxEager(Jax):
    """JAX without compilation, which is not what it is made for: small sizes only."""

    name = "JAX eager"
    largest = 1000
    longest = 300

    def prepare(self, case: Case) -> Program:
        """``jax.vjp`` runs the forward and returns the backward."""
        loss, arrays = case.loss(self.namespace()), self.arrays(case)
        ready, one = self.module.block_until_ready, self.module.device_put(np.ones(()))
        if case.workload.how == "forward":
            return Program(lambda: ready(loss(*arrays)))

        def of_differentiated(*parts):
            whole = list(arrays)
            for i, part in zip(case.wrt, parts, strict=True):
                whole[i] = part
            return loss(*whole)

        def forward():
            value, pull_back = self.module.vjp(of_differentiated, *(arrays[i] for i in case.wrt))
            return ready(value), pull_back

        def backward(graph):
            return ready(graph[1](one))

        def total():
            graph = forward()
            return graph[0], backward(graph)

        return Program(forward, backward, total)


class Loop(Side):
    """A side that runs programs as loops which numba compiles."""

    package = "numba"

    def suits(self, case: Case) -> bool:
        """Whether there is such a program."""
        return case.workload.loops is not None

    def namespace(self) -> Any:
        """None: the loops are complete."""
        raise NotImplementedError

    def prepare(self, case: Case) -> Program:
        """The program of the loops, on the arguments as they are."""
        assert case.workload.loops is not None
        return self.program(case, case.workload.loops)

    @abstractmethod
    def program(self, case: Case, loops: Loops) -> Program:
        """What is to be timed."""


class Numba(Loop):
    """The primal in plain numba, for reference."""

    name = "numba primal"

    def program(self, case: Case, loops: Loops) -> Program:
        """A forward only."""
        primal = self.module.njit(**loops.options)(loops.primal)
        return Program(forward=lambda: primal(*case.arguments))


class ByHand(Side):
    """Value and gradients written by hand for numba: the floor."""

    name = "numba by hand"
    package = "numba"

    def suits(self, case: Case) -> bool:
        """Whether somebody has written them."""
        return case.workload.by_hand is not None

    def namespace(self) -> Any:
        """None: the functions are complete."""
        raise NotImplementedError

    def prepare(self, case: Case) -> Program:
        """A total only: there is nothing to split."""
        by_hand = case.workload.by_hand
        assert by_hand is not None
        return Program(total=lambda: by_hand(*case.arguments))


class TapegradNjit(Loop):
    """Value and gradients of a function of numba's, from this library."""

    name = "tapegrad.njit"
    package = "tapegrad"

    def function(self, loops: Loops) -> Any:
        """The program, decorated."""
        return self.module.njit(**loops.options)(loops.nested() if loops.nested else loops.primal)

    def program(self, case: Case, loops: Loops) -> Program:
        """The forward is a plain call, which records nothing."""
        function = self.function(loops)
        value_and_grad = self.module.value_and_grad(function, case.wrt)
        return Program(
            forward=lambda: function(*case.arguments),
            total=lambda: value_and_grad(*case.arguments),
        )


SIDES: tuple[Side, ...] = (
    Tapegrad(),
    TapegradJit(),
    TapegradNjit(),
    Torch(),
    JaxJit(),
    JaxEager(),
    Autograd(),
    ByHand(),
    Numba(),
    NumPy(),
)


def installed() -> list[Side]:
    """The sides whose libraries are there, tapegrad first."""
    return [side for side in SIDES if side.available()]


def outcome(side: Side, case: Case, program: Program, result: Any) -> dict[str, np.ndarray]:
    """What a program returned, by name: the value and, where there are any, the gradients."""
    if program.total is None:
        return {"the value": side.to_numpy(result)}
    value, gradients = result
    found = {f"gradient {i}": side.steepest(g) for i, g in zip(case.wrt, gradients, strict=True)}
    return {"the value": side.to_numpy(value), **found}


def disagreement(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    """How an outcome differs from the expected one, or None if it does not."""
    for what in found.keys() & expected.keys():
        a, b = found[what], expected[what]
        if a.shape != b.shape:
            return f"{what} has shape {a.shape} instead of {b.shape}"
        largest = np.max(np.abs(b), initial=1e-300)
        if not np.allclose(a, b, rtol=1e-9, atol=1e-12 * largest):
            return f"{what} is off by {np.max(np.abs(a - b)) / largest:.1e} of its largest element"
    return None
