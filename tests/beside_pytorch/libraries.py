"""The same small program on both libraries: what it does has to agree.

A program is a function of `lib`. It is run with PyTorch's library and with tapegrad's, and the two
outcomes are compared after `normalise` removed what differs by design (names of ops, how shapes and
dtypes are printed). In a test module::

    pytest.importorskip("torch")
    program = Programs()

    @program
    def the_gradient_of_a_square(lib):
        x = lib.tensor([1.0, 2.0], True)
        (x * x).sum().backward()
        return x, x.grad

    @program(raises="grad can be implicitly created only for scalar outputs")
    def no_cotangent(lib):
        (lib.tensor([1.0, 2.0], True) * 2).backward()

    @pytest.mark.parametrize("name", program)
    def test_same(name):
        program.check(name)
"""

import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np

import tapegrad as tg

# -- rules of Functions that many programs use -----------------------------------------------------


def double(ctx, x):
    """A forward."""
    return x * 2


def same(ctx, g):
    """A backward that is wrong on purpose, so that it shows."""
    return g


def saving(ctx, x):
    """A forward that saves its input."""
    ctx.save_for_backward(x)
    return x * x


def backward_of_saving(ctx, g):
    """Its backward."""
    return g * 2 * ctx.saved_tensors[0]


# -- what several files of programs use ------------------------------------------------------------


def lists(grads):
    """A sequence of gradients as lists and None."""
    return [None if g is None else g.tolist() for g in grads]


def pair(lib):
    """A Function of two outputs, x * n and y * 1."""

    def forward(ctx, x, n, y):
        ctx.n = n
        return x * n, y * 1

    return lib.make(forward, lambda ctx, a, b: (a * ctx.n, None, b), name="Pair")


def leaf(lib, n=3):
    """1, 2, ... as a leaf."""
    return lib.tensor([float(k + 1) for k in range(n)], True)


def square(lib):
    """A matrix as a leaf."""
    return lib.tensor([[1.0, 2.0], [3.0, 4.0]], True)


# -- the two libraries ----------------------------------------------------------------------------


class Library:
    """A library under common names: those of `names`, then of `X.autograd`, then of `X`.

    So `lib.grad`, `lib.backward`, `lib.Function`, `lib.graph`, `lib.function`, `lib.forward_ad` and
    `lib.functional` are those of the autograd module, and `lib.exp` is the function on tensors.
    """

    def __init__(self, package, names):
        self.name = package.__name__
        self.package = package
        self.autograd = package.autograd
        self.__dict__.update(names)

    def __getattr__(self, name):
        for place in (self.autograd, self.package):
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"{self.name} has no {name!r}")

    def zeros(self, *shape, dtype="float64"):
        return self.package.zeros(shape, dtype=self.dtype(dtype))

    def ones(self, *shape, dtype="float64"):
        return self.package.ones(shape, dtype=self.dtype(dtype))

    def eye(self, n):
        return self.package.eye(n, dtype=self.dtype("float64"))

    def index(self, *numbers):
        """A tensor of integers."""
        return self.tensor(list(numbers), dtype="int64")

    def array(self, t):
        """The values as a NumPy array that nothing changes any more."""
        return np.array(t.detach().numpy())

    def attempt(self, action):
        """Call `action`, which has to raise; return the error for the comparison of outcomes."""
        try:
            action()
        except Exception as error:
            return Failure(error)
        raise AssertionError(f"{self.name}: nothing was raised")

    def make(self, forward, backward=None, setup=None, name="F", **attributes):
        """A Function from plain functions; `attributes` become static methods too."""
        body = {"forward": staticmethod(forward)}
        if backward is not None:
            body["backward"] = staticmethod(backward)
        if setup is not None:
            body["setup_context"] = staticmethod(setup)
        body |= {key: staticmethod(v) if callable(v) else v for key, v in attributes.items()}
        return type(name, (self.Function,), body)


def torch_library():
    """PyTorch under the common names; only a caller that has it may ask."""
    import torch

    torch.set_warn_always(True)  # else the order of the programs matters

    def tensor(data, requires_grad=False, dtype="float64"):
        return torch.tensor(data, dtype=getattr(torch, dtype), requires_grad=requires_grad)

    return Library(
        torch,
        {
            "tensor": tensor,
            "dtype": lambda name: getattr(torch, name),
            "astype": lambda t, dtype: t.to(getattr(torch, dtype)),
            "as_tensor": torch.as_tensor,
            "concatenate": torch.cat,
            "split": lambda t, n: torch.split(t, t.shape[0] // n),
            "unbind": torch.unbind,
            "transpose": lambda t: t.T,
            "multiply": torch.mul,
            "no_grad": torch.no_grad,
            "is_grad_enabled": torch.is_grad_enabled,
        },
    )


def tapegrad_library():
    """tapegrad under the common names."""

    def tensor(data, requires_grad=False, dtype="float64"):
        return tg.tensor(data, dtype=dtype, requires_grad=requires_grad)

    return Library(
        tg,
        {
            "tensor": tensor,
            "dtype": np.dtype,
            "astype": lambda t, dtype: t.astype(dtype),
            "as_tensor": tg.as_tensor,
            "split": tg.split,
            "transpose": lambda t: t.T,
        },
    )


# -- what differs by design -----------------------------------------------------------------------

OPS = {  # names of ops: PyTorch's and NumPy's
    "Abs": "Absolute",
    "Add": "Add",
    "Cat": "Concatenate",
    "Div": "Divide",
    "Max": "Max",
    "Mean": "Mean",
    "Mul": "Multiply",
    "Neg": "Negative",
    "Pow": "Power",
    "Prod": "Prod",
    "Sub": "Subtract",
    "Sum": "Sum",
}
DTYPES = {
    "Bool": "bool",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Int": "int32",
    "Long": "int64",
}
_RULES = [
    (r"See https?://\S+ for more details\.", lambda m: ""),
    (r"https?://\S+", lambda m: ""),
    (r"(?<=allowed)\.(?=You)", lambda m: ". "),  # a missing space between sentences
    (r"torch::autograd::", lambda m: ""),
    (r"torch\.(?:cpu\.)?(\w+)Tensor\b", lambda m: DTYPES.get(m[1], m[0])),
    (r"torch\.Size\((.*?)\)", lambda m: m[1]),
    (r"\bPyTorch\b", lambda m: "tapegrad"),
    (r"\b(?:torch|tapegrad)\.", lambda m: ""),
    (r"\b(\w+?Backward)\d+\b", lambda m: m[1]),
    (r"\b([A-Z]\w*?)Backward\b", lambda m: f"{OPS.get(m[1], m[1])}Backward"),
    (r"\b([Oo]utput \d+ of )([A-Z]\w*)", lambda m: m[1] + OPS.get(m[2], m[2])),
    (r"\((\d+(?:, \d+)+|\d+,|)\)", lambda m: f"[{m[1].rstrip(',')}]"),
    (r"0x[0-9a-f]+", lambda m: "0x"),
    (r"\s+", lambda m: " "),
]


def normalise(text):
    """Return the text without what differs by design."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def sentences(text):
    """The sentences of a text, normalised."""
    return [part for part in re.split(r"(?<=[.!?:])\s+", normalise(text)) if part]


class Failure:
    """An error as an outcome; the same if its type and its first sentence are the same."""

    def __init__(self, error):
        self.error = error
        self.text = normalise(str(error))

    def __repr__(self):
        return f"{type(self.error).__name__}({self.text!r})"


def _is_kind(ours, theirs):
    """Whether an error is of the type of another; types of a library's own compare by name."""
    own = type(theirs).__module__.partition(".")[0] == "torch"
    names = [cls.__name__ for cls in type(ours).__mro__]
    return type(theirs).__name__ in names if own else isinstance(ours, type(theirs))


def simplify(value, lib):
    """Turn a result into arrays and plain values that can be compared."""
    torch = sys.modules.get("torch")
    if isinstance(value, lib.Tensor):
        return SimpleNamespace(array=lib.array(value), requires_grad=bool(value.requires_grad))
    if isinstance(value, (list, tuple)):
        return [simplify(v, lib) for v in value]
    if isinstance(value, dict):
        return [[key, simplify(v, lib)] for key, v in value.items()]
    if isinstance(value, str):
        return normalise(value)
    if isinstance(value, np.dtype) or (torch and isinstance(value, torch.dtype)):
        return normalise(str(value))
    if isinstance(value, BaseException):
        return Failure(value)
    if isinstance(value, type):
        return normalise(value.__name__)
    if hasattr(value, "next_functions"):
        return normalise(value.name())
    return value


def assert_same(ours, theirs, where="result"):
    """Raise AssertionError, naming the place, if two simplified outcomes differ."""
    note = f"{where}: tapegrad gives {ours!r}, PyTorch {theirs!r}"
    assert type(ours) is type(theirs), note
    if isinstance(ours, list):
        assert len(ours) == len(theirs), note
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{k}]")
    elif isinstance(ours, SimpleNamespace):
        assert ours.requires_grad == theirs.requires_grad, note
        assert_same(ours.array, theirs.array, where)
    elif isinstance(ours, np.ndarray):
        assert ours.shape == theirs.shape, note
        assert ours.dtype == theirs.dtype, note
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14, err_msg=where)
    elif isinstance(ours, float):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14, err_msg=where)
    elif isinstance(ours, Failure):
        assert _is_kind(ours.error, theirs.error), note
        assert sentences(theirs.text)[0] in ours.text, note
    else:
        assert ours == theirs, note


# -- programs -------------------------------------------------------------------------------------


class Outcome:
    """What a program did: its result or its error, and its warnings."""

    def __init__(self, function, lib):
        self.value = self.error = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.value = simplify(function(lib), lib)
            except Exception as error:
                self.error = error
        self.warnings = [
            (w.category, normalise(str(w.message)))
            for w in caught
            if "torch.jit" not in str(w.message)  # PyTorch's own affair
        ]


class Programs:
    """The programs of a test module, by name; see the module's docstring.

    `@program` is for a program that returns: nothing may be raised. `@program(raises=text)` is for
    one that has to raise an error with this text on both sides, `@program(warns=text)` for one that
    warns with it. A text may also be True: then the first sentence has to be the same. Other
    warnings are compared by their categories.
    """

    def __init__(self):
        self._programs = {}

    def __call__(self, function=None, *, raises=None, warns=None):
        def note(function):
            name = function.__name__
            assert name not in self._programs, f"a second program named {name}"
            self._programs[name] = (function, raises, warns)
            return function

        return note if function is None else note(function)

    def __iter__(self):
        return iter(self._programs)

    def __len__(self):
        return len(self._programs)

    def __contains__(self, name):
        return name in self._programs

    def check(self, name):
        """Run a program on both libraries and raise AssertionError if they differ."""
        function, raises, warns = self._programs[name]
        theirs = Outcome(function, torch_library())
        ours = Outcome(function, tapegrad_library())
        for side, outcome in (("PyTorch", theirs), ("tapegrad", ours)):
            if outcome.error is not None and raises is None:
                raise AssertionError(f"{side} raised {outcome.error!r}") from outcome.error
            if outcome.error is None and raises is not None:
                raise AssertionError(f"{side} did not raise {raises!r}")
        if raises is not None:
            self._check_errors(Failure(ours.error), Failure(theirs.error), raises)
        else:
            assert_same(ours.value, theirs.value)
        self._check_warnings(ours.warnings, theirs.warnings, warns)

    @staticmethod
    def _check_errors(ours, theirs, raises):
        if raises is True:
            assert_same(ours, theirs, "error")
            return
        assert _is_kind(ours.error, theirs.error), f"tapegrad raises {ours}, PyTorch {theirs}"
        for failure in (theirs, ours):
            assert normalise(raises) in failure.text, f"{raises!r} is not in {failure.text!r}"

    @staticmethod
    def _check_warnings(ours, theirs, warns):
        note = f"warnings: tapegrad gives {ours}, PyTorch {theirs}"
        assert [category for category, _ in ours] == [category for category, _ in theirs], note
        if warns is True:
            assert theirs, "PyTorch did not warn"
            for (_, a), (_, b) in zip(ours, theirs, strict=True):
                assert sentences(b)[0] in a, note
        elif warns is not None:
            for found in (theirs, ours):
                assert any(normalise(warns) in text for _, text in found), note
