"""What is refused for the way it is written: the text names a way out, and that is right."""

import numpy as np
import pytest
from check import check, module

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4])


@tg.njit
def power(y, n):
    return 1.0 if n == 0 else y * power(y, n - 1)


@tg.njit
def at_the_level_of_the_module(x, a):
    return power(x, 3) * a[0]


HEAD = "import contextlib\nimport math\nimport numpy as np\nimport tapegrad as tg\n\nRATE = 2.0\n\n"
# what stands at the level of the module in ways out
OUTSIDE = """
@tg.njit
def cube(y, k=3):
    return y**k


@tg.njit
def applied(g, y):
    return g(y) * 2


@tg.njit
def root(y):
    if y > 0:
        return math.sqrt(y)


@tg.njit
def root_and_flag(y):
    return (math.sqrt(y), True) if y > 0 else (0.0, False)


@tg.njit
def values(y, n):
    found = np.empty(n)
    for k in range(n):
        found[k] = y**k
    return found


"""
# name: (the body that is refused, words of its text, a body that takes the way out)
WAYS = {
    "sorted in place": (
        "y = a * x\ny.sort()\nreturn y[0] * y[1] * y[1]",
        ["the method 'sort'", "write y = np.sort(y)"],
        "y = a * x\ny = np.sort(y)\nreturn y[0] * y[1] * y[1]",
    ),
    "sorted": (
        "y = sorted(a)\nreturn y[0] * y[1] * y[1] * x",
        ["sorted", "write np.sort(x)"],
        "y = np.sort(a)\nreturn y[0] * y[1] * y[1] * x",
    ),
    "histogram": (
        "h = np.histogram(a, 3)[0]\nreturn h[0] * a[1] * x",
        ["np.histogram", "counts are constant", "tg.stop_gradient(x)"],
        "h = np.histogram(tg.stop_gradient(a), 3)[0]\nreturn h[0] * a[1] * x",
    ),
    "transpose in place": (
        "d = np.outer(a, a) * x\nd += d.T\nreturn (d * d).sum()",
        ["in-place operation", "overlap", "copy the operand"],
        "d = np.outer(a, a) * x\nd += d.T.copy()\nreturn (d * d).sum()",
    ),
    "by the order of a quantile": (
        "return np.quantile(a, 0.5 * x) * x",
        ["np.quantile", "'q'", "tg.stop_gradient"],
        "y = np.sort(a)\nk = int(x)\nreturn (y[k] + (x - k) * (y[k + 1] - y[k])) * x",
    ),
    "try": (
        "try:\n    y = math.log(x) / a[0]\nexcept ZeroDivisionError:\n    y = x\nreturn y",
        ["try/except", "test the condition"],
        "if a[0] != 0:\n    y = math.log(x) / a[0]\nelse:\n    y = x\nreturn y",
    ),
    "finally": (
        "try:\n    y = x * a[0]\nfinally:\n    a[1] = x\nreturn y * a[1]",
        ["try/except"],
        "y = x * a[0]\na[1] = x\nreturn y * a[1]",
    ),
    "with": (
        "with contextlib.nullcontext():\n    y = cube(x) * a[0]\nreturn y * x",
        ["with block", "out of the function"],
        "y = cube(x) * a[0]\nreturn y * x",
    ),
    "match": (
        "match a.size:\n    case 2:\n        return x\n    case 3:\n        return x * x\n"
        "return a[0] * x",
        ["match", "if and elif"],
        "if a.size == 2:\n    return x\nelif a.size == 3:\n    return x * x\nreturn a[0] * x",
    ),
    "set comprehension": (
        "found = {k * k for k in range(3)}\nreturn x * len(found)",
        ["set comprehension", "loop"],
        "found = set()\nfor k in range(3):\n    found.add(k * k)\nreturn x * len(found)",
    ),
    "generator expression": (
        "return sum(e * x for e in a)",
        ["generator expression", "sum([...])"],
        "return sum([e * x for e in a])",
    ),
    "generator": (
        "def values(y):\n    for k in range(3):\n        yield y**k\n"
        "s = 0.0\nfor y in values(x):\n    s += y\nreturn s",
        ["generator", "fill an array"],
        "s = 0.0\nfor y in values(x, 3):\n    s += y\nreturn s",
    ),
    "starred": (
        "first, *rest = (x, x * 2, 3.0)\nreturn first * rest[0]",
        ["starred", "write the items out"],
        "first, second, third = (x, x * 2, 3.0)\nreturn first * second",
    ),
    "global": (
        "global RATE\nRATE = 3.0\nreturn x * RATE",
        ["global", "as an argument"],
        "rate = a[0]\nreturn x * rate",
    ),
    "nonlocal": (
        "s = 0.0\ndef add(y):\n    nonlocal s\n    s += y\nadd(x)\nadd(x * x)\nreturn s",
        ["nonlocal", "return the value"],
        "s = 0.0\ndef add(s, y):\n    return s + y\ns = add(s, x)\ns = add(s, x * x)\nreturn s",
    ),
    "import": (
        "import math\nreturn math.sin(x)",
        ["import", "top of the module"],
        "return math.sin(x)",
    ),
    "class": (
        "class Own:\n    y = 2.0\nreturn x * Own.y",
        ["class", "outside"],
        "return x * RATE",
    ),
    "inner function that calls itself": (
        "def power(y, n):\n    return 1.0 if n == 0 else y * power(y, n - 1)\nreturn power(x, 3)",
        ["power", "calls itself", "level of the module"],
        at_the_level_of_the_module,
    ),
    "inner function that is passed on": (
        "def cube(y):\n    return y**3\nreturn applied(cube, x)",
        ["cube", "passed on", "level of the module"],
        "return applied(cube, x)",
    ),
    "lambda that is passed on": (
        "return applied(lambda y: y**3, x)",
        ["lambda", "passed on", "level of the module"],
        "return applied(cube, x)",
    ),
    "inner function with a decorator": (
        "@tg.njit\ndef cube(y):\n    return y**3\nreturn cube(x)",
        ["cube", "decorator", "level of the module"],
        "return cube(x)",
    ),
    "inner function with a computed default": (
        "def cube(y, k=len(a)):\n    return y**k\nreturn cube(x)",
        ["cube", "computed default", "pass the argument"],
        "def cube(y, k):\n    return y**k\nreturn cube(x, len(a))",
    ),
    "inner function with any arguments": (
        "def added(*items):\n    return items[0] + items[1]\nreturn added(x, x * x)",
        ["added", "*args", "name its arguments"],
        "def added(first, second):\n    return first + second\nreturn added(x, x * x)",
    ),
    "two inner functions of one name": (
        "if x > 0:\n    def g(y):\n        return y * y\nelse:\n    def g(y):\n        return y\n"
        "return g(x)",
        ["'g'|function g", "name of its own"],
        "def g(y):\n    return y * y\ndef h(y):\n    return y\nreturn g(x) if x > 0 else h(x)",
    ),
    "inner function with named arguments": (
        "def scaled(y, k):\n    return y * k\nreturn scaled(k=2.0, y=x)",
        ["scaled", "by position"],
        "def scaled(y, k):\n    return y * k\nreturn scaled(x, 2.0)",
    ),
    "inner function with too few arguments": (
        "def scaled(y, k):\n    return y * k\nreturn scaled(x)",
        ["scaled", "(y, k)"],
        "def scaled(y, k):\n    return y * k\nreturn scaled(x, 2.0)",
    ),
    "value of a call, or None": (
        "y = root(x)\nif y is None:\n    return x * x\nreturn y",
        ["y, which is a value or None", "return a flag too"],
        "y, given = root_and_flag(x)\nif not given:\n    return x * x\nreturn y",
    ),
    "part that is deleted": (
        "items = [x, x * x]\ndel items[0]\nreturn items[0]",
        ["del of a part", "leave it out"],
        "items = [x, x * x]\nreturn items[1]",
    ),
    "loop over a list that grows": (
        "items = [x]\nfor y in items:\n    if len(items) < 3:\n        items.append(y * y)\n"
        "return items[0]",
        ["changes its length", "items.copy()"],
        "items = [x]\nfor y in items.copy():\n    if len(items) < 3:\n        items.append(y * y)\n"
        "return items[0] * items[1]",
    ),
    "ndenumerate": (
        "s = 0.0\nfor k, v in np.ndenumerate(a):\n    s += v * x\nreturn s",
        ["ndenumerate", "loop|range"],
        "s = 0.0\nfor k in range(a.size):\n    s += a[k] * x\nreturn s",
    ),
    "another shape of what is not contiguous": (
        "y = np.outer(a, a)[:, ::2].reshape(6)\nreturn (y * x).sum()",
        ["reshape() supports contiguous array"],
        "y = np.outer(a, a)[:, ::2].copy().reshape(6)\nreturn (y * x).sum()",
    ),
    "a dict of what is differentiated": (
        "d = {0: x, 1: x * 2.0}\nreturn d[1] * a[0]",
        ["dicts and records", "arrays"],
        "d = np.array([x, x * 2.0])\nreturn d[1] * a[0]",
    ),
    "a list of arrays": (
        "d = [a, a * x]\nreturn d[1][0]",
        ["lists", "dicts and records", "arrays"],
        "d = np.stack((a, a * x))\nreturn d[1][0]",
    ),
    "an item taken out of a list": (
        "d = [x, x * 2.0]\nd.remove(x)\nreturn d[0] * a[0]",
        ["list of floats", "remove|array"],
        "d = np.array([x, x * 2.0])\nreturn d[1] * a[0]",
    ),
    "a list that is sorted": (
        "d = [x * a[0], x * a[1]]\nd.sort()\nreturn d[0]",
        ["list", "sort|array"],
        "d = np.sort(np.array([x * a[0], x * a[1]]))\nreturn d[0]",
    ),
    "pieces of an array": (
        "p = np.split(a, 3)\nreturn p[0][0] * x",
        ["split|lists", "loop|arrays|stop_gradient"],
        "return a[:1][0] * x",
    ),
    "the norm of complex numbers": (
        "z = a * (1.0 + 1j * x)\nreturn np.linalg.norm(z)",
        ["complex numbers", "real and imaginary parts"],
        "z = a * (1.0 + 1j * x)\nreturn np.sqrt(np.sum(np.abs(z) ** 2))",
    ),
    "a filled diagonal": (
        "m = np.outer(a, a)\nnp.fill_diagonal(m, x)\nreturn (m * m).sum()",
        ["fill_diagonal", "loop"],
        "m = np.outer(a, a)\nfor k in range(3):\n    m[k, k] = x\nreturn (m * m).sum()",
    ),
    "drawn from what is differentiated": (
        "np.random.seed(3)\ny = np.random.permutation(a * x)\nreturn y[0]",
        ["permutation", "index|positions|numbers"],
        "np.random.seed(3)\ny = (a * x)[np.random.permutation(3)]\nreturn y[0]",
    ),
    "a sum of small integers in an expression": (
        "n = np.array([1, 2, 3], np.int8)\nreturn ((n + n) * a).sum() * x",
        ["give the part a name"],
        "n = np.array([1, 2, 3], np.int8)\nm = n + n\nreturn (m * a).sum() * x",
    ),
    "a loop over a small range and an array": (
        "s = 0.0\nfor k, v in zip(range(np.uint8(3)), a):\n    s += v * x * k\nreturn s",
        ["range(np.int64(n))"],
        "s = 0.0\nfor k, v in zip(range(np.int64(3)), a):\n    s += v * x * k\nreturn s",
    ),
    "a list that is extended by itself": (
        "b = [x, x * 2.0]\nb.extend(b)\nreturn b[3] * a[0]",
        ["extended by itself", "use an array"],
        "b = np.array([x, x * 2.0])\nb = np.concatenate((b, b))\nreturn b[3] * a[0]",
    ),
    "a slice of a list that is written": (
        "b = [x, x * 2.0, x * x]\nb[1:] = [x, x]\nreturn b[2] * a[0]",
        ["slice of a list", "use an array"],
        "b = np.array([x, x * 2.0, x * x])\nb[1:] = x\nreturn b[2] * a[0]",
    ),
    "a string that a loop changes": (
        "s = 'a'\nt = 0.0\nfor k in range(3):\n    t = t * x + (a[k] if s == 'a' else x)\n"
        "    s = 'b' if s == 'a' else 'a'\nreturn t * x",
        ["cannot keep s_1, of type unicode_type", "integers"],
        "s = 0\nt = 0.0\nfor k in range(3):\n    t = t * x + (a[k] if s == 0 else x)\n"
        "    s = 1 - s\nreturn t * x",
    ),
    "np.resize": (
        "return np.resize(a * x, 5).sum()",
        ["np.resize", "write tg.resize, which runs in Python"],
        "return tg.sum(tg.resize(a * x, 5))",
    ),
    "np.trim_zeros": (
        "return np.trim_zeros(a * x).sum()",
        ["np.trim_zeros", "rule"],
        "return (a * x)[np.nonzero(a)[0][0] :].sum()",
    ),
    "np.linalg.matrix_power": (
        "return np.linalg.matrix_power(np.outer(a, a) * x, 2).sum()",
        ["np.linalg.matrix_power", "rule"],
        "m = np.outer(a, a) * x\nreturn (m @ m).sum()",
    ),
    "the covariance of one variable": (
        "return np.cov(a * x)[()] * 1.0",
        ["np.cov of one vector", "write np.var(x) * x.size / (x.size - 1)"],
        "return np.var(a * x) * a.size / (a.size - 1)",
    ),
    "a norm of computed order": (
        "return np.linalg.norm(a, x + 1.5)",
        ["np.linalg.norm with this `ord`", "write it as a number"],
        "return np.linalg.norm(a * x, 2.5)",
    ),
    "items of a dict": (
        "d = {0: 1.0, 1: 2.0}\ns = 0.0\nfor k, v in d.items():\n    s += v * x\nreturn s * a[0]",
        ["loop over an array or a tuple of the keys"],
        "d = {0: 1.0, 1: 2.0}\ns = 0.0\nfor k in (0, 1):\n    s += d[k] * x\nreturn s * a[0]",
    ),
    "a call with a dict of names": (
        "d = {'k': 2}\nreturn cube(x, **d) * a[0]",
        ["a call with **", "name it"],
        "return cube(x, k=2) * a[0]",
    ),
    "loop over indices": (
        "s = 0.0\nfor k in np.ndindex(a.shape):\n    s += a[k] * x\nreturn s",
        ["np.ndindex", "range"],
        "s = 0.0\nfor k in range(a.shape[0]):\n    s += a[k] * x\nreturn s",
    ),
    "a list that is returned": (
        "return [x]",
        ["return an array"],
        "return np.array([x, a[0]]).sum() * x",
    ),
    "an item that is looked for in a list": (
        "b = [x]\nreturn x if x in b else 2 * x",
        ["np.array(items)"],
        "b = np.array([x, a[0]])\nreturn x if np.any(b == x) else 2 * x",
    ),
    "an item that is inserted": (
        "b = [x]\nb.insert(0, x)\nreturn b[0]",
        ["np.array(items)"],
        "b = [a[0]]\nb.append(x)\nc = np.array(b)\nreturn c[::-1][0] * c[1]",
    ),
    "a list of lists": (
        "b = [[x, 1.0], [2.0]]\nreturn b[0][0]",
        ["array"],
        "b = np.array([[x, 1.0], [2.0, a[0]]])\nreturn b[0, 0] * b[1, 1]",
    ),
    "one list or another": (
        "b = [x]\nc = [a[0]]\nd = b if x > 0 else c\nd.append(x)\nreturn d[0] * len(b)",
        ["one list or another"],
        "b = [x]\nc = [a[0]]\nd = np.array(b) if x > 0 else np.array(c)\nreturn d[0] * len(b)",
    ),
    "another list in each iteration": (
        "b = [x]\nfor i in range(3):\n    c = [a[i]]\n    b = c\nreturn b[0]",
        ["next iteration"],
        "b = [x]\nfor i in range(3):\n    b[0] *= a[i]\nreturn b[0]",
    ),
    "a list that is kept while it is made again": (
        "s = 0.0\nold = [x]\nfor i in range(3):\n    new = [a[i]]\n    s += old[0]\n    old = new\n"
        "return s",
        ["next iteration"],
        "s = 0.0\nold = x\nfor i in range(3):\n    new = a[i]\n    s += old * x\n    old = new\n"
        "return s",
    ),
    "a lambda with another name": (
        "g = lambda t: t * x\nh = g\nreturn h(x)",
        ["level of the module"],
        "g = lambda t: t * x\nreturn g(x)",
    ),
    "a lambda that is a key": (
        "return min(a, key=lambda v: v)",
        ["level of the module"],
        "return min(a) * x",
    ),
    "two lambdas of one name": (
        "g = lambda t: t\nif x > 0:\n    g = lambda t: t * x\nreturn g(x)",
        ["name of its own"],
        "g = lambda t: t\nh = lambda t: t * x\nreturn h(x) if x > 0 else g(x)",
    ),
    "a lambda with a named argument": (
        "g = lambda t, k=2: t * k\nreturn g(x, k=3)",
        ["by position"],
        "g = lambda t, k=2: t * k\nreturn g(x, 3) * a[0]",
    ),
}
# the line of the body that is shown, where it is not the first; 0 is that of the function
LINES = {"another shape of what is not contiguous": 0}
LINES |= dict.fromkeys([
    "sorted in place", "transpose in place", "inner function that calls itself",
    "inner function with a decorator", "two inner functions of one name",
    "value of a call, or None", "part that is deleted", "loop over a list that grows",
    "ndenumerate", "an item taken out of a list", "a list that is sorted",
    "the norm of complex numbers", "a filled diagonal", "drawn from what is differentiated",
    "a sum of small integers in an expression", "a loop over a small range and an array",
    "a list that is extended by itself", "a slice of a list that is written",
    "a call with a dict of names", "loop over indices", "an item that is looked for in a list",
    "an item that is inserted", "another list in each iteration", "a lambda with another name",
    "a lambda with a named argument",
], 2)  # fmt: skip
LINES |= dict.fromkeys([
    "generator", "nonlocal", "inner function that is passed on",
    "inner function with named arguments", "inner function with too few arguments",
    "a string that a loop changes", "items of a dict", "one list or another",
    "a list that is kept while it is made again",
], 3)  # fmt: skip


def written(body):
    """A function of a number and an array with some body."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"{HEAD}{OUTSIDE}@tg.njit\ndef f(x, a):\n{lines}"


FIRST = written("").count("\n") - 1  # the line before the body


@pytest.mark.parametrize("name", WAYS)
def test_ways_out(name):
    body, words, instead = WAYS[name]
    f = module(written(body))
    with pytest.raises(tg.TransformError) as caught:
        tg.grad(f, (0, 1))(0.5, A.copy())
    message = str(caught.value)
    shown = LINES.get(name, 1)
    place = f'File "{f.py_func.__code__.co_filename}", line {FIRST + shown}, in f\n'
    text = f"def f(x, a):\n{body}".split("\n")[shown].strip()
    assert f"{place}    {text}" in message, message
    for word in words:
        assert any(part in message for part in word.split("|")), message
    assert len(message) < 1000
    check(module(written(instead)) if isinstance(instead, str) else instead, 0.5, A)
