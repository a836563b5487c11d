"""Declarations of functions of whole arrays: which rule a call has, and its derivatives.

A `Spec` names the arguments of a function and holds for each its vjp (``NAME_vjp_ARGUMENT``) and
its jvp (``NAME_jvp_ARGUMENT``). If the result is a number, both follow from its partial
(``NAME_partial_ARGUMENT``). The parameter names of these functions say what they read:
arguments, ``z`` the result, ``g`` its cotangent, ``x_bar`` the cotangent to add to, ``x_dot`` the
tangent. They are written in the language that is differentiated, so they have derivatives
themselves. If a function is linear in an argument, its jvp is the function itself applied to the
tangent, and is generated.

Functions decorated with `understands` select the rule of a call of a NumPy function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tapegrad.kernels import native
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.cache.machine_code import inlined, jit
from tapegrad.transform.ir import names_in, replace_names
from tapegrad.transform.kinds import is_array, is_complex
from tapegrad.transform.nodes import attribute
from tapegrad.transform.rules.base import Elementary, Linear, View
from tapegrad.transform.rules.effects import EFFECTS, Effect
from tapegrad.transform.rules.generators import Lowerer
from tapegrad.transform.rules.scalars import product_of_elements
from tapegrad.transform.rules.whole import Whole
from tapegrad.transform.syntax import nodes_in, text_of
from tapegrad.transform.trees import qualified

VARIABLE = object()  # stands for the value of an argument that is not a constant


@dataclass
class Spec:
    """A function of arrays with its derivatives.

    The derivative with respect to arguments in `steps` is zero. If it `chooses`, it may leave
    elements of its arguments unused. If it is `holomorphic`, its derivatives are valid for complex
    arguments. It is linear in each of the `linear` ones. What several vjps need is computed once by
    `shared`, and is ``w`` in them.

    `extents` returns the key of the extent of an axis of its result, given what finds such keys
    (`tapegrad.transform.lowering.extents.Extents`), the arguments of a call, and the axis.
    """

    name: str
    arguments: tuple[str, ...]
    cheap: bool = False
    steps: tuple[str, ...] = ()
    chooses: bool = False
    holomorphic: bool = False
    linear: tuple[str, ...] = ()
    shared: Any = None
    extents: Callable[[Any, list[ast.expr], int], Any] | None = None
    vjp: dict[str, Any] = field(default_factory=dict)
    jvp: dict[str, Any] = field(default_factory=dict)


SPECS: dict[str, Spec] = {}
FUNCTIONS: dict[str, Callable[[Request], Any]] = {}  # by their names, in NumPy or here
PARAMETERS: dict[str, tuple[str, ...]] = {}
ADDITIONS: list[Any] = []
ADJOINTS: dict[str, tuple[list[str], ast.expr]] = {}
"""The parameters of some vjps after the first one, and what they add: a new array.

It is an expression of the parameters, and of the `shape` of the first one.
"""
_GENERATED: dict[str, str] = {}  # texts of derivatives that follow from declarations
_PARTIALS: dict[str, Any] = {}  # functions that they call


def declare(
    name: str,
    *arguments: str,
    cheap: bool = False,
    steps: tuple[str, ...] = (),
    calls: bool = True,
    chooses: bool = False,
    holomorphic: bool = False,
    linear: tuple[str, ...] = (),
    value: str = "",
    adjoint: str = "",
    like: str = "",
    extents: Callable[[Any, list[ast.expr], int], Any] | None = None,
) -> None:
    """Declare a function by the name that its derivatives start with.

    Parameters
    ----------
    name, *arguments, cheap, steps, chooses, holomorphic, extents
        The attributes of its `Spec`.
    calls
        Whether calls of NumPy's function of that name have this rule.
    linear
        Arguments in each of which it is linear; their jvps are generated.
    value
        The expression that these jvps evaluate; by default a call of NumPy's function of that name.
    adjoint
        The expression that the vjp of the only linear argument adds: a new array that functions of
        this package make of the cotangent ``g``, of arguments, and of the ``shape`` of this one.
    like
        A function declared earlier whose derivatives, as functions of the result, are the same.
    """
    spec = SPECS[name] = Spec(name, arguments, cheap, steps, chooses, holomorphic, linear)
    spec.extents = extents
    if like:
        spec.vjp, spec.jvp = SPECS[like].vjp, SPECS[like].jvp
        spec.shared = SPECS[like].shared
    for argument in linear:
        _tangent(name, argument, value or f"np.{name}({', '.join(arguments)})")
    if adjoint:
        _transpose(name, linear[0], adjoint)
    if calls:
        PARAMETERS[name] = arguments
        FUNCTIONS[name] = lambda request: request.whole(name)


def _tangent(name: str, argument: str, value: str) -> None:
    """Generate the jvp of a linear argument: the value with the tangent in place of it."""
    dot = ast.Name(f"{argument}_dot", ast.Load())
    tangent = replace_names(ast.parse(value, mode="eval").body, {argument: dot})
    given = {*SPECS[name].arguments, dot.id}
    reads = [found for found in names_in(tangent) if found in given]
    _generate(f"{name}_jvp_{argument}", reads, f"return {ast.unparse(tangent)}")


def _transpose(name: str, argument: str, adjoint: str) -> None:
    """Generate the vjp of a linear argument from what it adds."""
    tree = ast.parse(adjoint, mode="eval").body
    bar = f"{argument}_bar"
    read = set(names_in(tree))
    reads = [given for given in (*SPECS[name].arguments, "g") if given in read]
    added = replace_names(tree, {"shape": attribute(ast.Name(bar, ast.Load()), "shape")})
    _generate(f"{name}_vjp_{argument}", [bar, *reads], f"{bar} += {ast.unparse(added)}")
    for call in nodes_in(tree, ast.Call):
        EFFECTS[text_of(call.func)] = Effect()
        call.func = qualified(f"arrays.{text_of(call.func)}")
    ADJOINTS[f"arrays.{name}_vjp_{argument}"] = reads, tree


def _generate(name: str, parameters: Iterable[str], body: str) -> None:
    """Enter a derivative of one line."""
    _GENERATED[name] = f"def {name}({', '.join(dict.fromkeys(parameters))}):\n    {body}\n"


def enter_generated() -> None:
    """Enter the generated derivatives into their specs, all from one module."""
    source = "\n\n".join(["import numpy as np\n", *_GENERATED.values()])
    made = native.execute(native.fingerprint(source.encode()), source, "derivatives")
    functions = [made[name] for name in _GENERATED]
    made |= {"product_of_elements": product_of_elements, **_PARTIALS}
    for function in functions:
        derivative(function)


def derivative(function: Callable[..., Any], compiler: Callable[..., Any] = jit) -> Any:
    """Compile a derivative and enter it into the spec that its name refers to."""
    compiled = compiler(function)
    mode = "vjp" if "_vjp_" in function.__name__ else "jvp"
    name, argument = function.__name__.split(f"_{mode}_")
    getattr(SPECS[name], mode)[argument] = compiled
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    bar = f"{argument}_bar"
    changed = parameters.index(bar) if bar in parameters else None
    EFFECTS[function.__name__] = Effect(adds_to=changed, shows=mode == "jvp")
    return compiled


def shared(function: Callable[..., Any]) -> Any:
    """Compile what vjps share, and enter it into the spec that its name refers to (a decorator).

    It reads what they read, but for the cotangents of the arguments.
    """
    name = function.__name__.removesuffix("_shared")
    compiled = SPECS[name].shared = jit(function)
    EFFECTS[function.__name__] = Effect()
    return compiled


def short_derivative(function: Callable[..., Any]) -> Any:
    """Compile a derivative as `derivative` does, and repeat its code where it is called."""
    return derivative(function, inlined)


def partial(function: Callable[..., Any]) -> Any:
    """Compile the partial of a number that is made of an array, and generate what follows from it.

    The vjp adds the partial times the cotangent, the jvp is the sum of the partial times the
    tangent. Where the partial of a function that chooses is 0, nothing passes, not even nan.
    """
    compiled = _PARTIALS[function.__name__] = jit(function)
    name, argument = function.__name__.split("_partial_")
    code = function.__code__
    reads = code.co_varnames[: code.co_argcount]
    call = f"{function.__name__}({', '.join(reads)})"
    product = "product_of_elements({}, {})" if SPECS[name].chooses else "{} * {}"
    bar, dot = f"{argument}_bar", f"{argument}_dot"
    vjp = f"{bar} += {product.format(call, 'g')}"
    _generate(f"{name}_vjp_{argument}", [*reads, bar, "g"], vjp)
    jvp = f"return np.sum({product.format(call, dot)})"
    _generate(f"{name}_jvp_{argument}", [*reads, dot], jvp)
    return compiled


def addition(function: Callable[..., Any]) -> Any:
    """Compile a function that adds a linear function of its last argument to the first one.

    Its jvp is the same call with the tangents of these two, so it may use everything numba
    supports. The arguments between them are not differentiated.
    """
    compiled = jit(function)
    EFFECTS[function.__name__] = Effect(adds_to=0)
    ADDITIONS.append(compiled)
    return compiled


def ruled(function: Any, vjp: Any, jvp: Any) -> None:
    """Give a compiled function rules, as `Function.defvjp` and `defjvp` do for users."""
    function.rule_vjp = vjp
    function.rule_jvp = jvp


def named_function(function: Any) -> Any:
    """Let calls of a compiled function of this package have the rule of its name (a decorator).

    What it returns are new arrays, or numbers.
    """
    function.tapegrad_rule = function.__name__
    _PARTIALS[function.__name__] = function
    return function


def understands(*names: str) -> Callable[[Any], Any]:
    """Enter the function that selects the rule of calls of NumPy functions (a decorator).

    Its parameters are a `Request` and then the parameters of the NumPy functions, by name:
    ``def _(call, a, axis)``; missing ones are None. It returns a rule, None if the call has none,
    or a text that says what is not supported.
    """

    def enter(choose: Any) -> Any:
        code = choose.__code__
        parameters = code.co_varnames[1 : code.co_argcount]

        def find(request: Request) -> Any:
            return choose(request, *(request.operands.get(name) for name in parameters))

        for name in names:
            PARAMETERS[name] = parameters
            FUNCTIONS[name] = find
        return choose

    return enter


class Request:
    """A call of a NumPy function or method: its arguments by name, and their types.

    Attributes
    ----------
    text
        The name of the function.
    operands
        Atoms by parameter; arguments that were not given, or given as None, are missing.
    expr
        The call.
    kind
        The numba type of the result.
    """

    def __init__(self, lowering: Lowerer, text: str, expr: ast.Call, kind: Any) -> None:
        self.lowering = lowering
        self.text = text
        self.expr = expr
        self.kind = kind
        self.operands: dict[str, ast.expr] = {}

    def bind(self, arguments: list[ast.expr], keywords: list[ast.keyword]) -> bool:
        """Bind the arguments to the parameters; return whether that is possible."""
        parameters = PARAMETERS[self.text]
        if len(arguments) > len(parameters):
            return False
        found = dict(zip(parameters, arguments, strict=False))
        for keyword in keywords:
            if keyword.arg not in parameters or keyword.arg in found:
                return False
            found[keyword.arg] = keyword.value
        self.operands = {
            key: value
            for key, value in found.items()
            if not (isinstance(value, ast.Constant) and value.value is None)
        }
        return True

    def type(self, operand: ast.expr | None) -> Any:
        """Return the numba type of an operand, None if it is missing."""
        return None if operand is None else self.lowering.type_of(operand)

    def ndim(self, operand: ast.expr | None) -> int:
        """Return the number of dimensions of an operand, 0 for a number."""
        return getattr(self.type(operand), "ndim", 0)

    def constant(self, operand: ast.expr | None, default: Any = None) -> Any:
        """Return the value of a constant operand, else `VARIABLE`."""
        if operand is None:
            return default
        return operand.value if isinstance(operand, ast.Constant) else VARIABLE

    def is_complex(self, operand: ast.expr | None) -> bool:
        """Whether an operand is complex, or an array of complex numbers."""
        return is_complex(self.type(operand))

    @property
    def is_whole(self) -> bool:
        """Whether the result is an array."""
        return is_array(self.kind)

    def whole(self, name: str, **operands: ast.expr | None) -> Any:
        """Return the rule of a spec; without operands, its arguments are those of the call."""
        spec = SPECS[name]
        if not operands:
            operands = {n: self.operands[n] for n in spec.arguments if n in self.operands}
        given = {key: value for key, value in operands.items() if value is not None}
        for key in given:
            if key not in spec.steps and key not in spec.jvp:
                # a real argument without a known derivative is refused, not treated as constant
                spec.vjp.setdefault(key, None)
        return Whole(spec, given, self.is_whole, self.lowering)

    def elementary(self, op: Any, *operands: ast.expr) -> Any:
        """Return the rule of an elementwise function, given as an op or by name."""
        found = TABLE[op] if isinstance(op, str) else op
        return Elementary(found, list(operands), self.is_whole, self.lowering)

    def linear(self, operand: ast.expr) -> Any:
        """Return the rule of a copy or conversion."""
        return Linear(operand, self.is_whole, self.lowering)

    def written_as(self, text: str, array: ast.Name, rule: Any) -> Any:
        """Return a rule of a call that is written as another one of an array `a`.

        The text says then what the rule knows from the types, such as that the result is a copy.
        """
        rule.written_as = replace_names(ast.parse(text, mode="eval").body, {"a": array.id})
        return rule

    def view(self, operand: ast.expr | None) -> Any:
        """Return the rule of a view."""
        return View(operand.id) if isinstance(operand, ast.Name) else None

    def refuse(self, what: str) -> Exception:
        """Return the error for a call that is always refused."""
        error: Exception = self.lowering.refuse(f"cannot differentiate {what}")
        return error

    def number(self, value: Any) -> ast.expr:
        """Return a constant, for a parameter that was left out."""
        return ast.Constant(value)
