"""The hash of a function: everything that is used, by value, however it is reached."""

import collections
import importlib
import itertools
import os
import pkgutil
import subprocess
import sys
import textwrap

import numba
import pytest

import tapegrad as tg
from tapegrad.transform.cache import fingerprint
from tapegrad.transform.cache.fingerprint import Fingerprint

NUMBERS = itertools.count()

HEAD = """
import enum
import functools
import math
import typing
import numba
import numpy as np
import tapegrad as tg
import package.inner.deep
import package.inner.deep as deep
from package import inner
from numba.experimental import jitclass
from numba.extending import overload, register_jitable
"""


def digest(tmp_path, body, value, monkeypatch):
    """The hash of the function `f` of a program, with a value where VALUE stands."""
    folder = tmp_path / f"way_{next(NUMBERS)}" / "package" / "inner"
    folder.mkdir(parents=True)
    main, _, deep = textwrap.dedent(body).partition("# deep\n")
    texts = {
        folder.parent / "__init__.py": "",
        folder / "__init__.py": "",
        folder / "deep.py": "import typing\nimport numba\nimport numpy as np\n" + deep,
        folder.parent / "main.py": HEAD + main,
    }
    for path, text in texts.items():
        path.write_text(text.replace("VALUE", value))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder.parents[1]))
        importlib.invalidate_caches()
        try:
            found = Fingerprint(importlib.import_module("package.main").f)
        finally:
            for name in [n for n in sys.modules if n.split(".")[0] == "package"]:
                del sys.modules[name]
    return found.digest.digest(), found.complete


NUMBER = ("1.5", "2.5")

# what is used: a program with VALUE in it, two values
USED = {
    "global": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", *NUMBER),
    "module": ("@tg.njit\ndef f(x):\n    return deep.K * x\n# deep\nK = VALUE", *NUMBER),
    "package": (
        "@tg.njit\ndef f(x):\n    return package.inner.deep.K * x\n# deep\nK = VALUE",
        *NUMBER,
    ),
    "module in a variable": (
        "@tg.njit\ndef f(x):\n    m = inner\n    return m.deep.K * x\n# deep\nK = VALUE",
        *NUMBER,
    ),
    "class attribute": (
        "class C:\n    K = VALUE\n@tg.njit\ndef f(x):\n    return C.K * x",
        *NUMBER,
    ),
    "class in a module": (
        "@tg.njit\ndef f(x):\n    return inner.deep.C.K * x\n# deep\nclass C:\n    K = VALUE",
        *NUMBER,
    ),
    "callee": (
        "@numba.njit\ndef g(x):\n    return VALUE * x\n@tg.njit\ndef f(x):\n    return g(x)",
        *NUMBER,
    ),
    "callee in a module": (
        "@tg.njit\ndef f(x):\n    return inner.deep.g(x)\n"
        "# deep\n@numba.njit\ndef g(x):\n    return VALUE * x",
        *NUMBER,
    ),
    "constant of a callee in a module": (
        "@tg.njit\ndef f(x):\n    return inner.deep.g(x)\n"
        "# deep\nK = VALUE\n@numba.njit\ndef g(x):\n    return K * x",
        *NUMBER,
    ),
    "signature of a callee": (
        "@numba.njit('float64(float64, VALUE)')\ndef g(x, n):\n    return n * x\n"
        "@tg.njit\ndef f(x):\n    return g(x, 300)",
        "int64",
        "int8",
    ),
    "types of a callee's variables": (
        "@numba.njit(locals={'k': VALUE})\ndef g(x):\n    k = x + 0.1\n    return k * x\n"
        "@tg.njit\ndef f(x):\n    return g(x)",
        "numba.float64",
        "numba.float32",
    ),
    "closure": (
        "def make(k):\n    @tg.njit\n    def f(x):\n        return k * x\n    return f\n"
        "f = make(VALUE)",
        *NUMBER,
    ),
    "closure over a function": (
        "def make(k):\n    @numba.njit\n    def g(x):\n        return k * x\n"
        "    @tg.njit\n    def f(x):\n        return g(x)\n    return f\nf = make(VALUE)",
        *NUMBER,
    ),
    "inner function": (
        "K = VALUE\n@tg.njit\ndef f(x):\n    h = lambda y: K * y\n    return h(x)",
        *NUMBER,
    ),
    "default": ("K = VALUE\n@tg.njit\ndef f(x, k=K):\n    return k * x", *NUMBER),
    "keyword default": ("K = VALUE\n@tg.njit\ndef f(x, *, k=K):\n    return k * x", *NUMBER),
    "tuple": ("K = (1.0, (VALUE, 2))\n@tg.njit\ndef f(x):\n    return K[1][0] * x", *NUMBER),
    "array": ("K = np.array([VALUE])\n@tg.njit\ndef f(x):\n    return K[0] * x", *NUMBER),
    "dict of arrays": (
        "K = {'a': np.array([VALUE])}\n@tg.njit\ndef f(x):\n    return K['a'][0] * x",
        *NUMBER,
    ),
    "named tuple": (
        "class P(typing.NamedTuple):\n    a: float\n    b: float\n"
        "K = P(VALUE, 1.0)\n@tg.njit\ndef f(x):\n    return K.a * x",
        *NUMBER,
    ),
    "fields of a named tuple": (
        "class P(typing.NamedTuple):\n    VALUE\n"
        "K = P(1.0, 2.0)\n@tg.njit\ndef f(x):\n    return K.a * x",
        "a: float\n    b: float",
        "b: float\n    a: float",
    ),
    "fields of a class that is called": (
        "@tg.njit\ndef f(x):\n    return deep.P(x, 2.0).a\n"
        "# deep\nclass P(typing.NamedTuple):\n    VALUE",
        "a: float\n    b: float",
        "b: float\n    a: float",
    ),
    "enumeration": (
        "class E(enum.IntEnum):\n    A = VALUE\n@tg.njit\ndef f(x):\n    return E.A * x",
        "1",
        "2",
    ),
    "structured scalar": (
        "K = np.array([(VALUE, 2)], [('a', float), ('b', int)])[0]\n"
        "@tg.njit\ndef f(x):\n    return K.a * x",
        *NUMBER,
    ),
    "fields of a structured scalar": (
        "K = np.array([(1, 2)], VALUE)[0]\n@tg.njit\ndef f(x):\n    return K.a * x",
        "[('a', 'i8'), ('b', 'i8')]",
        "[('b', 'i8'), ('a', 'i8')]",
    ),
    "partial": (
        "@numba.njit\ndef g(k, x):\n    return k * x\n"
        "h = functools.partial(g, VALUE)\n@tg.njit\ndef f(x):\n    return h(x)",
        *NUMBER,
    ),
    "vectorized": (
        "K = VALUE\n@numba.vectorize\ndef g(x):\n    return K * x\n"
        "@tg.njit\ndef f(x):\n    return g(x)",
        *NUMBER,
    ),
    "overload": (
        "K = VALUE\ndef g(x):\n    pass\n@overload(g)\ndef over(x):\n"
        "    return lambda x: K * x\n@tg.njit\ndef f(x):\n    return g(x)",
        *NUMBER,
    ),
    "jitable": (
        "K = VALUE\n@register_jitable\ndef g(x):\n    return K * x\n"
        "@tg.njit\ndef f(x):\n    return g(x)",
        *NUMBER,
    ),
    "rule": (
        "K = VALUE\n@tg.njit\ndef g(x):\n    return x\n"
        "@g.defvjp\ndef rule(x, z, u):\n    return (K * u,)\n@tg.njit\ndef f(x):\n    return g(x)",
        *NUMBER,
    ),
    "derivative": (
        "@numba.njit\ndef g(x):\n    return VALUE * x * x\nh = tg.grad(g)\n"
        "@tg.njit\ndef f(x):\n    return h(x)",
        *NUMBER,
    ),
    "options": ("@tg.njit(error_model='VALUE')\ndef f(x):\n    return 1.0 / x", "numpy", "python"),
    "class with methods": (
        "@jitclass([('a', numba.float64)])\nclass C:\n    def __init__(self):\n"
        "        self.a = VALUE\n@tg.njit\ndef f(x):\n    return C().a * x",
        *NUMBER,
    ),
    "sign of zero": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "0.0", "-0.0"),
    "int or float": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "1", "1.0"),
    "int or bool": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "1", "True"),
    "in a tuple": ("K = (VALUE,)\n@tg.njit\ndef f(x):\n    return K[0] * x", "1", "True"),
    "not a number": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "math.inf", "math.nan"),
    "last bit": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "0.1", "0.10000000000000002"),
    "precision": (
        "K = VALUE(1.0)\n@tg.njit\ndef f(x):\n    return K * x",
        "np.float32",
        "np.float64",
    ),
    "NumPy's own": ("K = VALUE\n@tg.njit\ndef f(x):\n    return K * x", "1.0", "np.float64(1.0)"),
    "type of an array": (
        "K = np.ones(2, VALUE)\n@tg.njit\ndef f(x):\n    return K[0] * x",
        "'f4'",
        "'f8'",
    ),
    "shape of an array": (
        "K = np.ones(VALUE)\n@tg.njit\ndef f(x):\n    return K.shape[0] * x",
        "(2, 3)",
        "(3, 2)",
    ),
    "layout of an array": (
        "K = np.VALUE(np.ones((2, 2)))\n@tg.njit\ndef f(x):\n    return K[0, 0] * x",
        "asfortranarray",
        "ascontiguousarray",
    ),
}


@pytest.mark.parametrize("name", USED)
def test_other_value_other_hash(name, tmp_path, monkeypatch):
    body, one, two = USED[name]
    first, complete = digest(tmp_path, body, one, monkeypatch)
    again, _ = digest(tmp_path, body, one, monkeypatch)
    other, _ = digest(tmp_path, body, two, monkeypatch)
    assert complete
    assert first == again
    assert first != other


# what has no value that holds in another process: a module in memory only
UNKNOWN = {
    "object": "class C:\n    pass\nK = C()\nK.a = 1.0\n@tg.njit\ndef f(x):\n    return K.a * x",
    "object array": "K = np.array([object()])\n@tg.njit\ndef f(x):\n    return K[0] * x",
    "address": (
        "import ctypes\ng = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(abs)\n"
        "@tg.njit\ndef f(x):\n    return g(x)"
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_hash(name, tmp_path, monkeypatch):
    _, complete = digest(tmp_path, UNKNOWN[name], "", monkeypatch)
    assert not complete


def test_what_is_not_used_does_not_count(tmp_path, monkeypatch):
    body = """
        OTHER = VALUE
        def unused(x):
            return VALUE
        @tg.njit
        def f(x):
            OTHER = 2.0
            return OTHER * math.sin(x) * deep.K
        # deep
        K, L = 1.0, VALUE
    """
    assert digest(tmp_path, body, "1.0", monkeypatch) == digest(tmp_path, body, "2.0", monkeypatch)


def test_libraries_are_known(tmp_path, monkeypatch):
    body = """
        @tg.njit
        def f(x):
            return np.sum(np.linalg.inv(x)) + math.pi + tg.sigmoid(x[0, 0]) + len(x) + abs(x[0, 1])
    """
    assert digest(tmp_path, body, "", monkeypatch)[1]


# -- from one process to the next ------------------------------------------------------------------

PROGRAM = """
import math
import sys
import typing
import numpy as np
import tapegrad as tg
import settings.physics.constants

class Params(typing.NamedTuple):
    {fields}

@tg.njit
def f(x):
    return settings.physics.constants.RATE * x * x

@tg.njit
def of_params(p):
    return p.rate * p.rate * p.time

x = np.array(3.0)
print(f(3.0), tg.value_and_grad(f)(3.0))
p = Params(2.0, 5.0)
print(of_params(p), tuple(tg.grad(of_params)(p)))
"""


def run(path, cache):
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(cache)}
    made = subprocess.run(
        [sys.executable, "-W", "error", path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_edits_are_seen_by_the_next_process(tmp_path):
    """A constant two modules deep and the order of fields are edited, and put back."""
    folder = tmp_path / "settings" / "physics"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder.parent / "__init__.py").write_text("")
    path = tmp_path / "program.py"
    for rate, fields in ((2.0, "rt"), (3.5, "rt"), (3.5, "tr"), (2.0, "tr"), (2.0, "rt")):
        (folder / "constants.py").write_text(f"RATE = {rate}  # {'#' * int(rate)}\n")
        names = {"r": "rate: float", "t": "time: float"}
        path.write_text(PROGRAM.format(fields="\n    ".join(names[c] for c in fields)))
        value, gradient = rate * 9.0, rate * 6.0
        r, t = (2.0, 5.0) if fields == "rt" else (5.0, 2.0)
        expected = {"r": 2 * r * t, "t": r * r}
        of_params = tuple(expected[c] for c in fields)
        assert run(path, tmp_path / "cache") == (
            f"{value} {(value, gradient)}\n{r * r * t} {of_params}\n"
        )


@tg.njit
def of_pair(p):
    return p.a


def test_types_of_a_tuple_in_a_signature():
    """Named tuples of one name with other fields have other modules."""
    found = []
    for fields in ("a b", "b a", "a b"):
        made = collections.namedtuple("Pair", fields)
        fingerprint = Fingerprint(of_pair)
        fingerprint.add_kinds((numba.typeof(made(1.0, 2.0)),))
        found.append(fingerprint.digest.digest())
    assert found[0] == found[2] != found[1]


def test_the_verifier_is_part_of_the_key(monkeypatch):
    """Code that an older verifier has let pass is verified again."""
    before = fingerprint.package.__wrapped__()
    read = pkgutil.get_data

    def changed(package, path):
        return read(package, path) + b"#" * path.startswith("transform/verifier/")

    monkeypatch.setattr(pkgutil, "get_data", changed)
    assert fingerprint.package.__wrapped__() != before
