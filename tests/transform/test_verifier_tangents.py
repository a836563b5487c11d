"""The verifier of forward mode: each rule, with a text that keeps it and texts that break it.

A text is the function with its tangents; the function alone is what stands in it without them.
"""

import ast
import random
import re

import pytest
from check import module
from mutants import Judgement, fixed_subjects, random_subjects
from purposes import purposes_of
from test_verifier_mutants import check

import tapegrad as tg
from tapegrad.transform.errors import InternalError
from tapegrad.transform.verifier import verify
from tapegrad.transform.verifier.code import Primal
from tapegrad.transform.verifier.purpose import Half, Purpose

pytestmark = pytest.mark.texts

DOT = re.compile(r"\w*_(dot|slope|rest)\b")


def plain(text):
    """The function that a text with tangents is made from, as it is given to the verifier."""
    tree = ast.parse(text)
    for function in tree.body:
        function.args.args = [a for a in function.args.args if not DOT.match(a.arg)]
        for node in ast.walk(function):
            for field in ("body", "orelse"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    kept = [part for s in block if (part := without_tangents(s)) is not None]
                    setattr(node, field, kept or ([ast.Pass()] if block else []))
    functions = [f for f in tree.body if f.name.endswith("_tangent")]
    return {f.name: Primal(ast.unparse(f), set(), set(), set()) for f in functions}


def without_tangents(statement):
    """A statement without its tangents; None if it computes nothing else."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        return ast.Return(statement.value.elts[0])
    call = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign) and isinstance(call, ast.Call):
        name = getattr(call.func, "id", "")
        if name.endswith("_tangent"):
            given = [a for a in call.args if not DOT.search(ast.unparse(a))]
            name = ast.Name(name.removesuffix("_tangent"), ast.Load())
            return ast.Assign([statement.targets[0].elts[0]], ast.Call(name, given, []), lineno=1)
    if not isinstance(statement, (ast.If, ast.For, ast.While)):
        return None if DOT.search(ast.unparse(statement)) else statement
    return statement


def function(body, params="x, y, x_dot, y_dot", name="f_tangent"):
    """A function; its text is indented when it is used, after it was changed."""
    return f"def {name}({params}):\n{body}\n"


def indented(text):
    lines = text.splitlines()
    return "\n".join(x if x.startswith("def ") else f"    {x}" for x in lines) + "\n"


ARRAYS = "a, b, x, a_dot, b_dot, x_dot"
CALLEE = function(
    "a[0] = x\na_dot[0] = x_dot\nz = x * x\nz_dot = x_dot * x + x_dot * x\nreturn z, (z_dot,)",
    "a, x, a_dot, x_dot",
    "g_tangent",
)

# what is right, and by names: the text that is exchanged, with what, and what the verifier says
RULES = {
    "an operation": (
        function("z = x * y\nz_dot = x_dot * y + y_dot * x\nreturn z, (z_dot,)"),
        {
            "a term less": ("x_dot * y + y_dot * x", "x_dot * y", "not what follows"),
            "twice": ("x_dot * y", "x_dot * y + x_dot * y", "not what follows"),
            "another": ("y_dot * x", "x_dot * x", "not what follows"),
            "zero": ("x_dot * y + y_dot * x", "0.0", "not what follows"),
            "no tangent": ("x_dot * y + y_dot * x", "y", "is no tangent"),
            "missing": ("z_dot = x_dot * y + y_dot * x\n", "z_dot = x_dot\n", "not what follows"),
        },
    ),
    "a difference": (
        function("z = x - y\nz_dot = x_dot - y_dot\nreturn z, (z_dot,)"),
        {
            "the sign": ("x_dot - y_dot", "x_dot + y_dot", "not what follows"),
            "a factor": ("x_dot - y_dot", "x_dot * y - y_dot", "a factor"),
        },
    ),
    "a recurrence": (
        function(
            "for i in range(3):\n    x_slope = 1.0\n    w = x * y\n    w_slope = x_slope * y\n"
            "    w_rest = y_dot * x\n    z = x - w\n    z_slope = x_slope - w_slope\n"
            "    z_rest = -w_rest\n    z_dot = z_slope * x_dot + z_rest\n"
            "    x = z\n    x_dot = z_dot\nreturn x, (x_dot,)"
        ),
        {
            "the start": ("x_slope = 1.0", "x_slope = 0.0", "not what follows"),
            "another start": ("x_slope = 1.0", "x_slope = 2.0", "no tangent"),
            "no slope": ("x_slope - w_slope", "x_slope", "not what follows"),
            "the sign of a slope": ("x_slope - w_slope", "x_slope + w_slope", "not what follows"),
            "no rest": ("z_slope * x_dot + z_rest", "z_slope * x_dot", "not what follows"),
            "another rest": (" + z_rest", " + w_rest", "not what follows"),
            "another slope": ("= z_slope * x_dot", "= w_slope * x_dot", "slope of another value"),
            "another tangent": ("z_slope * x_dot", "z_slope * y_dot", "not what follows"),
            "a slope less": ("w_slope = x_slope * y\n", "w_slope = 0.0\n", "not what follows"),
            "a rest less": ("w_rest = y_dot * x\n", "w_rest = 0.0\n", "not what follows"),
            "a slope in a rest": ("w_rest = y_dot", "w_rest = x_slope", "not what it was|follows"),
            "minus": ("= z_slope * x_dot + z", "= -z_slope * x_dot + z", "not what follows|factor"),
        },
    ),
    "what is no operand": (
        function(
            "w = x * x\nw_dot = x_dot * x + x_dot * x\nz = w * y\n"
            "z_dot = w_dot * y + y_dot * w\nreturn z, (z_dot,)"
        ),
        {
            "a tangent": ("w_dot * y", "x_dot * y", "x is no operand"),
            "a value": ("w_dot * y", "w_dot * x", "x is not what it was at the operation"),
        },
    ),
    "a branch": (
        function(
            "c = x > 0.0\nif c:\n    z = x\n    z_dot = x_dot\nelse:\n    z = y\n"
            "    z_dot = y_dot\nreturn z, (z_dot,)"
        ),
        {
            "the other": ("z_dot = y_dot", "z_dot = x_dot", "x_dot is no tangent"),
            "nothing": ("z_dot = y_dot", "z_dot = 0.0", "not what follows"),
            "minus": ("z_dot = y_dot", "z_dot = -y_dot", "not what follows"),
            "a factor": ("z_dot = y_dot", "z_dot = y_dot * 2.0", "a factor"),
        },
    ),
    "a loop": (
        function(
            "z = x\nz_dot = x_dot\nfor i in range(3):\n    w = z * y\n"
            "    w_dot = z_dot * y + y_dot * z\n    z = w\n    z_dot = w_dot\n"
            "return z, (z_dot,)"
        ),
        {
            "not carried": ("    z_dot = w_dot\n", "", "tangent of another value"),
            "before": (
                "    z = w\n    z_dot = w_dot",
                "    z_dot = w_dot\n    z = w",
                "no tangent",
            ),
            "late": (
                "    w_dot = z_dot * y + y_dot * z\n    z = w\n",
                "    z = w\n    w_dot = z_dot * y + y_dot * z\n",
                "tangent of another value|not what it was",
            ),
        },
    ),
    "two go round": (
        function(
            "p = x\np_dot = x_dot\nq = y\nq_dot = y_dot\nfor i in range(3):\n"
            "    w = q * p\n    w_dot = q_dot * p + p_dot * q\n"
            "    p, p_dot, q, q_dot = q, q_dot, w, w_dot\nreturn p, (p_dot,)"
        ),
        {"mixed up": ("= q, q_dot, w, w_dot", "= q, w_dot, w, q_dot", "tangent")},
    ),
    "an array of its own": (
        function(
            "c = a + 1.0\nc_dot = a_dot.copy()\nc[0] = x\nc_dot[0] = x_dot\n"
            "z = np.sum(c)\nz_dot = arrays.sum_jvp_x(c_dot)\nreturn z, (z_dot,)",
            ARRAYS,
        ),
        {"shared": ("a_dot.copy()", "a_dot", "c_dot is shared with the tangent of another array")},
    ),
    "an array that a caller may write": (
        function(
            "t = a[0]\nt_dot = a_dot[0]\nc = a + t\nc_dot = a_dot + t_dot\nd = c + 1.0\n"
            "d_dot = c_dot.copy()\nreturn (c, d), (c_dot, d_dot)",
            ARRAYS,
        ),
        {"shared": ("c_dot.copy()", "c_dot", "shared")},
    ),
    "a view": (
        function(
            "v = a[1:]\nv_dot = a_dot[1:]\nv[0] = x\nv_dot[0] = x_dot\nz = a[1]\n"
            "z_dot = a_dot[1]\nreturn z, (z_dot,)",
            ARRAYS,
        ),
        {
            "copied": ("a_dot[1:]", "a_dot[1:].copy()", "v_dot"),
            "made anew": ("a_dot[1:]", "np.zeros_like(v)", "does not show what v shows"),
            "elsewhere": ("a_dot[1:]", "a_dot[2:]", "does not show what v shows"),
            "of another": ("a_dot[1:]", "b_dot[1:]", "v_dot is not the tangent of all names"),
        },
    ),
    "a store": (
        function(
            "a[0] = x\na_dot[0] = x_dot\nt = a[0]\nt_dot = a_dot[0]\nreturn t, (t_dot,)", ARRAYS
        ),
        {
            "missing": ("a_dot[0] = x_dot\n", "", "an element of a is stored, and no tangent"),
            "elsewhere": ("a_dot[0] = x_dot", "a_dot[1] = x_dot", "no element of a is stored"),
            "another": ("a_dot[0] = x_dot", "b_dot[0] = x_dot", "no element of b is stored"),
            "late": (
                "a_dot[0] = x_dot\nt = a[0]\nt_dot = a_dot[0]\n",
                "t = a[0]\nt_dot = a_dot[0]\na_dot[0] = x_dot\n",
                "not what follows",
            ),
            "zero": ("a_dot[0] = x_dot", "a_dot[0] = 0.0", "not what follows"),
            "something else": ("a_dot[0] = x_dot", "a_dot[0] = a_dot[1]", "not what the function"),
        },
    ),
    "a store of what is constant": (
        function("a[0] = 2.0\na_dot[0] = 0.0\nreturn x, (x_dot,)", ARRAYS),
        {"missing": ("a_dot[0] = 0.0\n", "", "no tangent of it")},
    ),
    "a sum in place": (
        function("a += b\na_dot += b_dot\nt = a[0]\nt_dot = a_dot[0]\nreturn t, (t_dot,)", ARRAYS),
        {
            "missing": ("a_dot += b_dot\n", "", "an element of a is stored"),
            "assigned": (
                "a_dot += b_dot",
                "a_dot = a_dot + b_dot",
                "not what follows|no operand|is no tangent|not the tangent",
            ),
            "less": ("a_dot += b_dot", "a_dot -= b_dot", "not what follows"),
        },
    ),
    "what is read": (
        function(
            "z = a * b\nz_dot = a_dot * b + b_dot * a\nb[0] = x\nb_dot[0] = x_dot\n"
            "s = np.sum(z)\ns_dot = arrays.sum_jvp_x(z_dot)\nreturn s, (s_dot,)",
            ARRAYS,
        ),
        {
            "written meanwhile": (
                "z_dot = a_dot * b + b_dot * a\nb[0] = x\n",
                "b[0] = x\nz_dot = a_dot * b + b_dot * a\n",
                "b is not what it was at the operation",
            ),
        },
    ),
    "numbers in an array": (
        function(
            "c = np.array([x, y])\nc_dot = np.zeros_like(c)\nc_dot[0] = x_dot\n"
            "c_dot[1] = y_dot\nt = c[1]\nt_dot = c_dot[1]\nreturn t, (t_dot,)"
        ),
        {
            "missing": ("c_dot[1] = y_dot\n", "", "an element of c is stored|not what follows"),
            "mixed up": (
                "c_dot[0] = x_dot\nc_dot[1] = y_dot",
                "c_dot[1] = x_dot\nc_dot[0] = y_dot",
                "not what the function stores",
            ),
        },
    ),
    "a call": (
        CALLEE
        + function(
            "z, (z_dot,) = g_tangent(a, x, a_dot, x_dot)\nt = a[0]\nt_dot = a_dot[0]\n"
            "w = t * z\nw_dot = t_dot * z + z_dot * t\nreturn w, (w_dot,)",
            ARRAYS,
        ),
        {
            "of another": ("x, a_dot, x_dot)\nt", "x, b_dot, x_dot)\nt", "it gets b_dot for"),
            "zero": ("a_dot, x_dot)\nt", "a_dot, 0.0)\nt", "not what follows"),
            "fewer": ("a_dot, x_dot)\nt", "a_dot)\nt", "does not get the tangents"),
            "before": (
                "z, (z_dot,) = g_tangent(a, x, a_dot, x_dot)\nt = a[0]\nt_dot = a_dot[0]\n",
                "t = a[0]\nt_dot = a_dot[0]\nz, (z_dot,) = g_tangent(a, x, a_dot, x_dot)\n",
                "lacks, or has late",
            ),
        },
    ),
    "several results": (
        function(
            "p = x * x\np_dot = x_dot * x + x_dot * x\nreturn (p, x), (p_dot, x_dot)",
            "x, x_dot",
            "g_tangent",
        )
        + function(
            "(z, w), (z_dot, w_dot) = g_tangent(x, x_dot)\nt = z * w\n"
            "t_dot = z_dot * w + w_dot * z\nreturn t, (t_dot,)"
        ),
        {
            "mixed up": ("(z_dot, w_dot)", "(w_dot, z_dot)", "is the tangent of another result"),
            "more": ("(z_dot, w_dot) =", "(z_dot, w_dot, w_dot) =", "does not take the tangents"),
        },
    ),
    "what a user calls": (
        CALLEE
        + function(
            "if a_dot.shape[0] != a.shape[0]:\n    raise ValueError('the shape')\n"
            "value, dots = g_tangent(a, x, a_dot.copy(), x_dot)\nreturn value, dots[0]",
            "a, x, a_dot, x_dot",
            "g_pushforward",
        ),
        {
            "mixed up": ("a_dot.copy(), x_dot)", "x_dot, a_dot)", "x_dot is not what it has to"),
            "written": ("a_dot.copy()", "a_dot", "a_dot is not what it has to pass on"),
            "no tangent": ("dots[0]", "0", "the tangent of z is not what"),
            "another value": ("return value,", "return dots,", "does not return the value"),
        },
    ),
    "the result": (
        function(
            "p = x * x\np_dot = x_dot * x + x_dot * x\nq = y * y\n"
            "q_dot = y_dot * y + y_dot * y\nreturn (p, q), (p_dot, q_dot)"
        ),
        {
            "mixed up": ("(p_dot, q_dot)", "(q_dot, p_dot)", "has no place in the result"),
            "not there": ("(p_dot, q_dot)", "(p_dot,)", "the tangent of q is not what follows"),
            "no tangent": ("(p_dot, q_dot)", "(p_dot, p)", "it returns what is no tangent"),
            "alone": ("(p, q), (p_dot, q_dot)", "p", "does not return a value with its tangent"),
        },
    ),
}
BROKEN = [(rule, name) for rule, (_, broken) in RULES.items() for name in broken]


GIVEN = ("np", "arrays", "g")


def check_text(text, right):
    """Verify a text as code for the tangents of the function that the right text is made from."""
    primals = plain(right)
    purposes = purposes_of(right, (), primals) | {"jvp": Purpose(Half.TANGENT)}
    verify(text, GIVEN, (), primals, purposes=purposes)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_right_is_accepted(rule):
    text = indented(RULES[rule][0])
    check_text(text, text)


@pytest.mark.parametrize(("rule", "name"), BROKEN)
def test_what_breaks_a_rule_is_refused(rule, name):
    text, broken = RULES[rule]
    old, new, what = broken[name]
    assert old in text
    with pytest.raises(InternalError, match=what):
        check_text(indented(text.replace(old, new)), indented(text))


def test_the_function_has_to_be_there():
    text = indented(RULES["what is no operand"][0])
    for old, new in (("w = x * x", "w = x * y"), ("    z = w * y\n", "    z = w * x\n")):
        with pytest.raises(InternalError, match="lacks, or has late"):
            check_text(text.replace(old, new), text)


def test_names_of_the_user_that_look_like_tangents():
    f = module(
        "import tapegrad as tg\n"
        "@tg.njit\n"
        "def f(x, x_dot):\n"
        "    y_dot = x * x_dot\n"
        "    tape = y_dot * x\n"
        "    top = tape + x_dot\n"
        "    return top * tape\n"
    )
    value, slope = tg.jvp(f, (0, 1))(2.0, 3.0, 1.0, 0.0)
    assert value == (12.0 + 3.0) * 12.0
    assert slope == 12.0 * 12.0 + 15.0 * 12.0


LIKE_GENERATED = {
    "slopes of recurrences": (
        "def f(x, s_1_slope):\n"
        "    s = 1.0\n"
        "    for i in range(4):\n"
        "        s = np.sin(s * x * s_1_slope)\n"
        "    return s * s_1_slope\n"
    ),
    "derivatives that a call returns": (
        "def f(x, cotangents_1):\n"
        "    tangents_1 = x * cotangents_1\n"
        "    a = np.array([[x, tangents_1], [tangents_1, 1.0]])\n"
        "    w, v = np.linalg.eigh(a)\n"
        "    return (w * w * w).sum() * cotangents_1 + tangents_1\n"
    ),
}


@tg.njit
def recursion(x, x_part_0):
    if x <= 1.0:
        return x * x_part_0
    return recursion(x - 1.0, x_part_0) * x


@pytest.mark.parametrize("name", ["parts of cotangents", *LIKE_GENERATED])
def test_names_of_the_user_that_look_like_generated_ones(name):
    f = recursion  # which is not found in a text
    if name in LIKE_GENERATED:
        f = module(f"import numpy as np\nimport tapegrad as tg\n@tg.njit\n{LIKE_GENERATED[name]}")
    x, y, step = 1.7, 0.6, 1e-6
    wanted = [
        (f(x + step, y) - f(x - step, y)) / (2 * step),
        (f(x, y + step) - f(x, y - step)) / (2 * step),
    ]
    found = tg.grad(f, (0, 1))(x, y)
    tangents = [tg.jvp(f, (0, 1))(x, y, *dots)[1] for dots in ((1.0, 0.0), (0.0, 1.0))]
    assert found == pytest.approx(wanted, rel=1e-7)
    assert tangents == pytest.approx(wanted, rel=1e-7)


def test_mutants_of_tangents_are_refused():
    judgement, draw = Judgement(every=8), random.Random(0)
    for subject in fixed_subjects(mode="forward"):
        judgement.judge(subject, draw, 16)
    check(judgement, 60)


def test_mutants_of_tangents_of_random_programs_are_refused():
    judgement, draw = Judgement(every=8), random.Random(0)
    for subject in random_subjects(range(900, 906), "forward"):
        judgement.judge(subject, draw, 16)
    check(judgement, 20)


def test_mutants_of_tangents_of_gradients_are_refused():
    judgement, draw = Judgement(every=8), random.Random(0)
    for subject in fixed_subjects(("views and stores", "work array in a callee"), "second"):
        judgement.judge(subject, draw, 40)
    check(judgement, 20)


def test_the_tape_of_tangents_is_used_like_the_tape():
    subject = next(fixed_subjects(("a step writes to its state",), "second"))
    subject.verify(subject.text)
    kept = [line for line in subject.text.splitlines() if "runtime.push_tangent(" in line]
    taken = [line for line in subject.text.splitlines() if "pop_array(" in line and "_dot," in line]
    assert kept
    assert taken
    for line in (kept[0], taken[0]):
        changed = re.sub(r"(\w+_dot), \w+,", r"\1, 0,", line.partition("= ")[2])
        with pytest.raises(InternalError, match="tape of tangents"):
            subject.verify(subject.text.replace(line, line.partition("= ")[0] + "= " + changed))
