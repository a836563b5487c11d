"""Lists of numbers, comprehensions, inner functions and lambdas."""

import numpy as np
import pytest
from check import check
from test_normal_form import A, program

import tapegrad as tg

LISTS = {
    "display": """
        b = [x, 2 * x, 1.0]
        b[0] = b[1] * x
        b[2] += b[0]
        b[-1] *= b[1]
        return b[0] * b[1] * b[2] * len(b)
    """,
    "loop over": """
        s = 0.0
        for c in [0.1, x]:
            s += c * x
        for i, (c, d) in enumerate(zip([x, 2.0], a)):
            s += c * d * i
        return s
    """,
    "repeated": """
        b = [0.0] * 3
        c = len(a) * [x]
        for i in range(3):
            b[i] = x * a[i]
        b[-1] *= 2
        c[0] = b[1]
        return b[1] * b[2] * c[0] * c[1]
    """,
    "append": """
        b = []
        for v in a:
            b.append(v * x)
        return b[1] * b[0] + len(b)
    """,
    "append on some paths": """
        b = []
        for v in a:
            if v > 0:
                b.append(v * x)
                b.append(v)
        b = np.array(b)
        return (b * b).sum() + b[1]
    """,
    "append in two loops": """
        b = [x]
        for i in range(2):
            for v in a:
                b.append(v * x * i)
            for k in range(len(a)):
                b.append(b[-1] * a[k] + b[k])
        return b[4] * b[3] + b[-1] * len(b)
    """,
    "append and jumps": """
        b = [x]
        for i in range(3):
            if a[i] > 0:
                b.append(a[i] * b[-1])
            else:
                b.append(x)
                continue
            if i == 5:
                break
        return b[1] * b[2] * b[3]
    """,
    "append in branches": """
        b = [x]
        if x > 0:
            b.append(a[0])
        else:
            b.append(a[1])
            b.append(a[2])
        return b[-1] * b[0] * len(b)
    """,
    "integers that become floats": """
        b = [0]
        for v in a:
            b.append(v * x)
        return b[1] * b[3]
    """,
    "two names": """
        b = [x]
        c = b
        c.append(a[0])
        for i in range(2):
            c.append(b[-1] * x)
            b.append(c[-1] * 2)
        return b[-1] * b[2]
    """,
    "two names in a long loop": """
        b = [x]
        c = b
        for i in range(400):
            c.append(0.9 * b[-1] * x)
            b.append(np.sin(c[-1]) + a[i % 3])
        return b[-1] * b[200]
    """,
    "made in a loop": """
        s = 0.0
        for i in range(3):
            b = [x * i]
            for v in a:
                b.append(v * b[-1] + 1)
            s += b[2] * b[3]
        return s + b[1]
    """,
    "one of two": """
        b = [x, 1.0] if x > 0 else [x, 2.0, 3.0]
        if a[0] > 0:
            c = [a[1]]
        else:
            c = [v * x for v in a]
        return b[0] * b[1] * len(b) * c[0]
    """,
    "pop": """
        b = [x, 2 * x, a[0]]
        y = b.pop()
        b.append(y * x)
        s = b[-1] * y
        while len(b) > 0:
            s = s * x + b.pop()
        return s
    """,
    "parts": """
        b = [x, 2 * x, a[0]]
        c = b[1:]
        d = b.copy()
        c[0] = 5.0 * x
        d[1] = a[1]
        return b[1] * c[0] * c[1] * d[1] * d[0]
    """,
    "extend": """
        b = [x]
        b.extend([2 * x, a[0]])
        b += [a[1]]
        b.extend(a)
        b.clear()
        b.extend(b[0:0])
        b += list(a)
        return b[1] * b[2] * len(b)
    """,
    "as arrays": """
        b = [x, a[0]]
        c = np.array(b, dtype=np.float64)
        d = np.asarray(b)
        d[0] = 5.0 * x
        a[:2] = b
        return c[0] * c[1] * d[0] * b[0] * a[0] * a[1]
    """,
    "truth": """
        b = []
        if b:
            x = x * 100
        b.append(x)
        return b[0] * a[0] if b else 1.0
    """,
}
COMPREHENSIONS = {
    "elements": "b = [v * x for v in a]\nreturn b[0] * b[-1] + len(b)",
    "whole": "return sum([v * x for v in a]) * max([v * x for v in a]) + min([v * v for v in a])",
    "some": "b = [v * x for v in a if v > 0]\nreturn b[0] * b[1] * len(b)",
    "two loops": """
        b = [v * w * x for v in a for w in a if w > v]
        return b[0] + b[1] * 2 + np.array(b).sum()
    """,
    "array": "b = np.array([v * x for v in a])\nreturn (b * b).sum()",
    "range": "b = [a[i] * x for i in range(1, len(a))]\nreturn b[0] * b[1]",
    "enumerate and zip": """
        b = [i * v * x for i, v in enumerate(a)]
        c = [v * w for v, w in zip(a, a[1:])]
        return b[1] + b[2] * b[1] + c[0] * c[1]
    """,
    "names of their own": """
        v = 3.0 * x
        b = [v * w for w in a]
        c = [v for v in a]
        return b[0] * c[1] * v
    """,
    "nested": """
        b = [sum([v * w for w in a]) for v in a]
        return b[0] * b[1] * x
    """,
    "calls of inner functions": """
        g = lambda t: t * x
        b = [g(v) for v in a]
        c = [[g(v * w) for w in a][1] for v in a]
        return sum(b) * b[0] + c[0] * c[1]
    """,
    "choices": "b = [v if v > 0 else product(v, x) for v in a]\nreturn b[0] * b[2]",
}
INNER = {
    "lambda": """
        g = lambda y: y * x * a[0]
        h = lambda y, k=2: y * k + g(y)
        return g(2.0) + h(x) * h(x, 3) + (lambda t: t * t)(a[1])
    """,
    "jumps": """
        k = x * 2

        def g(y):
            "Its documentation."
            z = y * k
            if z > 100:
                return z
            for i in range(5):
                if i == 3:
                    return z * i
                z = z * x
            return z

        k = k + 1
        s = 0.0
        for v in a:
            s += g(v)
        return s
    """,
    "variables as they are at the call": """
        k = 1.0
        g = lambda y: y * k
        s = 0.0
        for i in range(3):
            k = k + x
            s += g(a[i])
        if x > 0:
            k = 5.0 * x
        return g(x) + s
    """,
    "writing": """
        def put(i, v):
            if i > 5:
                return
            a[i] = a[i] * v

        put(0, x)
        put(1, 2.0)
        put(0, x)
        put(7, x)
        return a[0] * a[1]
    """,
    "within": """
        y = 3.0 * x

        def g(y):
            h = lambda z: z * x + y
            y = y * 2
            return h(y) * h(2 * y)

        return g(x) + g(a[0]) * y
    """,
    "in conditions": """
        g = lambda t: t * t
        while g(x) < 30.0:
            x = x * 1.5
        if g(x) > 2 and g(a[0]) > 0:
            x = g(x)
        return x * a[0]
    """,
    "lists": """
        out = []

        def put(v):
            if v > 0:
                out.append(v * x)
            for k in range(2):
                out.append(v)

        for v in a:
            put(v)
        return out[0] * out[1] + len(out)
    """,
    "tuples and arrays": """
        def g(p, q):
            return p * q, p + q

        norm = lambda v: (v * v).sum()
        u, v = g(x, a[0])
        return u * v * norm(a) * norm(a[1:])
    """,
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    check(program(LISTS[name]), 0.7, A)


@pytest.mark.parametrize("name", COMPREHENSIONS)
def test_comprehensions(name):
    check(program(COMPREHENSIONS[name]), 0.7, A)


@pytest.mark.parametrize("name", INNER)
def test_inner_functions(name):
    check(program(INNER[name]), 0.7, A)


def test_items_out_of_range():
    f = program("b = [x, a[0]]\nreturn b[int(a[1])] * x")
    assert tg.grad(f)(0.5, np.array([2.0, 1.9, 0.0])) == 2.0
    for place in (2.0, -3.0):
        with pytest.raises(IndexError, match="out of range"):
            tg.grad(f)(0.5, np.array([2.0, place, 0.0]))
