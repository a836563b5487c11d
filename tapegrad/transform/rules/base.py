"""Rules of operations: what an operation reads, and how its derivative is written in both modes.

A rule writes code through a generator (`reverse` or `forward` of `tapegrad.transform.codegen`):
``write_vjp`` adds to the cotangents of the inputs, ``write_jvp`` computes the tangent of the
output. Derivatives of elementary functions come from the op table
(`tapegrad.transform.rules.partials`), those of functions of whole arrays from
`tapegrad.transform.rules.arrays`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeGuard

from numba.core import types

from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import Fact
from tapegrad.transform.ir import Let, name, names_in, replace_names
from tapegrad.transform.kinds import is_complex, is_real
from tapegrad.transform.nodes import call_of
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode
from tapegrad.transform.rules.partials import partial
from tapegrad.transform.syntax import key_of, name_of, nodes_in

Atoms = list[ast.expr]


class Rule:
    """How one operation is differentiated.

    Attributes
    ----------
    cheap
        Whether the result may be recomputed in the reverse pass instead of being kept.
    base
        The array that the result is a view of, if it is a view.
    fresh
        Whether the result is a new array.
    kept
        Names of copies of arrays, made at the operation, by the names of the arrays.
    calls
        Whether it is a call, whose `write_vjp` and `write_jvp` find out what carries derivatives.
    is_passing
        Whether cotangents reach all elements of the operands, unless multiplied by a zero among the
        program's own values. Not set for ops of the table.
    rounds
        The name that is rounded to some decimals, "" for other operations.
    written_as
        An equivalent of the operation, if its text says less than the rule knows from the types.
    """

    cheap = True
    base: str | None = None
    fresh = False
    kept: Mapping[str, str] = MappingProxyType({})
    calls = False
    is_passing = False
    rounds = ""
    written_as: ast.expr | None = None
    _inputs: Sequence[str] = ()

    def inputs(self) -> Sequence[str]:
        """Return the names of real numbers and arrays that the result depends on."""
        return self._inputs

    def is_input(self, atom: ast.expr | None) -> TypeGuard[ast.Name]:
        """Whether an operand, or a part of one, is a real number or array."""
        return isinstance(atom, ast.Name) and atom.id in self._inputs

    def is_active(self, gen: Generator, atom: ast.expr | None) -> bool:
        """Whether an operand, or a part of one, carries derivatives."""
        return self.is_input(atom) and gen.is_active(atom.id)

    def contents(self, let: Let) -> list[str]:
        """Return the names whose elements `write_vjp` may read, possibly including the result."""
        return []

    def always_used(self) -> list[str]:
        """Return the operands known to be used wherever the result is."""
        return []

    def vanishing(self, let: Let) -> Sequence[str]:
        """Return the operands with respect to which the derivative may be 0 where they are used."""
        return []

    def written(self) -> list[str]:
        """Return the arrays whose elements the operation changes."""
        return []

    def apart(self, let: Let) -> list[str]:
        """Return the results that show elements of an array, with derivatives of their own."""
        return []

    def reading(self, kept: dict[str, str]) -> Rule:
        """Return the rule with arrays read from copies."""
        made = copy.copy(self)
        made.kept = kept
        return made

    def read(self, node: ast.expr) -> ast.expr:
        """Return an expression that reads arrays as they were at the operation."""
        return replace_names(node, self.kept) if self.kept else node

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Write the code that adds to the cotangents of the inputs."""

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the code that computes the tangent of the result."""

    def zeros(self, let: Let) -> ast.expr:
        """Return an expression for an array of zeros like the (fresh) result."""
        return call_of("np.zeros_like", name(let.target))


def conjugate(expr: ast.expr, whole: bool) -> ast.expr:
    """Return an expression for the conjugate of a number or of an array."""
    match expr:
        case ast.UnaryOp(ast.USub() as sign, operand):
            return ast.UnaryOp(sign, conjugate(operand, whole))
        case ast.Constant(value):
            number: Any = value
            return ast.Constant(number.conjugate())
    if whole:
        return ast.Call(name("np.conj"), [expr], [])
    return ast.Call(ast.Attribute(expr, "conjugate", ast.Load()), [], [])


def real_names(atoms: Atoms, lowering: Lowerer) -> list[str]:
    """Return the names of real numbers and arrays in expressions."""
    return [
        n for atom in atoms for n in names_in(atom) if is_real(lowering.types.get(n, types.none))
    ]


class Passive(Rule):
    """An operation without derivative: on integers, booleans, shapes."""

    def __init__(self, cheap: bool) -> None:
        self.cheap = cheap
        self.changed: list[str] = []

    def written(self) -> list[str]:
        return self.changed


class Held(Passive):
    """An array that a class instance holds, which must not be written."""


class Step(Passive):
    """A function of reals that is constant between jumps: its derivative is zero."""

    def __init__(self, whole: bool) -> None:
        super().__init__(True)
        self.fresh = whole


class Part(Rule):
    """An item of a tuple that was passed as an argument."""


class Unknown(Rule):
    """A call without a rule; refused if it is to be differentiated."""

    cheap = False

    def __init__(
        self, inputs: Sequence[str], what: str, shows: bool = False, given: Sequence[str] = ()
    ) -> None:
        self._inputs = inputs
        self.what = what
        self.shows = shows  # the result is a view of an array without derivative
        self.given = given  # lists, sets and dicts, which may hold arrays

    def written(self) -> list[str]:
        return [*self._inputs, *self.given]


class Writing(Unknown):
    """A call without a rule that writes to some arrays, and returns none but these."""

    def __init__(self, inputs: Sequence[str], what: str, arrays: list[str]) -> None:
        super().__init__(inputs, what, shows=True)
        self._arrays = arrays

    def written(self) -> list[str]:
        return self._arrays

    def shared(self, let: Let) -> list[list[str]]:
        """Return the groups of names that may share elements afterwards."""
        return [[let.target, *self._arrays]]


def is_arithmetic(op: Elementwise, operands: Atoms) -> bool:
    """Whether recomputing an op is cheaper than keeping and reloading its result."""
    if op.name == "power":
        exponent = operands[1]
        return isinstance(exponent, ast.Constant) and isinstance(exponent.value, int)
    return Fact.ARITHMETIC in op.facts


def is_polynomial(op: Elementwise, operands: Atoms) -> bool:
    """Whether an op is a polynomial of its operands; so are its partials."""
    is_smooth = Fact.HOLOMORPHIC in op.facts and not op.chooses
    return is_smooth and is_arithmetic(op, operands) and not may_be_undefined(op, operands)


def may_be_undefined(op: Elementwise, operands: Atoms) -> bool:
    """Whether an op may be infinite or nan for finite operands."""
    if not op.facts & (Fact.SINGULAR | Fact.OVERFLOWING):
        return False
    if op.name == "power" and isinstance(operands[1], ast.Constant):
        exponent = operands[1].value
        return not (isinstance(exponent, int) and exponent >= 0)
    return any(names_in(operand) for operand in (operands[1:] if op.name == "divide" else operands))


class Elementary(Rule):
    """An op of the table, on numbers or, with broadcasting, on whole arrays."""

    def __init__(self, op: Any, operands: Atoms, whole: bool, lowering: Lowerer) -> None:
        self.op = op
        self.operands = operands
        self.whole = whole
        self.fresh = whole
        self.cheap = whole or is_arithmetic(op, operands)
        self.types = lowering.types
        self.is_complex = False  # whether any operand or the result is
        self.computed: Mapping[Hashable, str] = MappingProxyType({})  # names of calls
        self._inputs = real_names(operands, lowering)

    def contents(self, let: Let) -> list[str]:
        return [*names_in(let.expr), let.target] if self.whole else []

    def partial(self, position: int, result: str) -> ast.expr:
        """Return the partial derivative with respect to an operand."""
        op = self.op
        atoms = {"z": self.read(name(result))}
        atoms.update(zip(op.arguments, map(self.real, self.operands), strict=True))
        test = self.may_be_complex if self.is_complex else None
        return partial(op, op.arguments[position], atoms, self.whole, test)

    def real(self, operand: ast.expr) -> ast.expr:
        """Return an operand for a formula of reals; integers are converted, because they wrap."""
        found = self.read(operand)
        kind: Any = self.types.get(name_of(operand))
        whole = isinstance(kind, types.Array)
        if Fact.ARITHMETIC in self.op.facts or self.op.name == "power":
            return found  # their partials compute nothing from one operand alone
        if not isinstance(kind.dtype if whole else kind, types.Integer):
            return found
        if whole:
            return ast.Call(ast.Attribute(found, "astype", ast.Load()), [name("np.float64")], [])
        return call_of("np.float64", found)

    def may_be_complex(self, expr: ast.expr) -> bool:
        """Whether an expression of operands and the result may be complex."""
        if any(isinstance(node.value, complex) for node in nodes_in(expr, ast.Constant)):
            return True
        kinds = {n: self.types.get(n) for n in names_in(expr)}
        # the types of copies are not known here
        return any(
            is_complex(kind) if kind is not None else n in self.kept.values()
            for n, kind in kinds.items()
        )

    def terms(self, gen: Generator, let: Let) -> Any:
        """Yield every active operand with its partial."""
        for position, operand in enumerate(self.operands):
            if gen.is_active(read := name_of(operand)):
                if self.op.arguments[position] in self.op.rules:
                    factor = self.partial(position, let.target)
                    if position == 1 and self.may_settle(gen, let.target):
                        factor = call_of("runtime.settled", factor, self.read(operand))
                    yield position, read, factor

    def may_settle(self, gen: Generator, target: str) -> bool:
        """Whether functions that are constant at infinity are applied to a quotient."""
        return (
            self.op.name == "divide"
            and not self.whole
            and not self.is_complex
            and gen.is_settled(target)
        )

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        for position, operand, factor in self.terms(gen, let):
            if isinstance(factor, ast.Constant) and factor.value == 0:
                continue
            factor = self.in_terms_of_computed(factor)
            if self.is_complex and self.may_be_complex(factor):
                factor = conjugate(factor, self.whole)
            # what was not selected receives nothing, not even nan
            selects = self.op.chooses and not isinstance(factor, ast.Constant)
            guarded = not selects and self.is_guarded(gen, let.target, position, factor)
            if self.may_vanish(gen, operand, factor):
                factor = call_of(self.nonzero_name(factor), factor)
            g = gen.shadow(let.target) if self.whole else name(gen.bar(let.target))
            product: ast.expr | None = None
            if selects:
                product = call_of(self.product_name(), factor, g)
            elif guarded:
                product = call_of(self.product_name(), g, factor)
            if not self.whole:
                if product is None:
                    gen.add(operand, g, factor)
                else:
                    gen.add(operand, product, _ONE, factor)
                continue
            if product is None:
                product = _product(g, factor)
            if isinstance(self.types[operand], types.Array):
                gen.add_array(operand, product, self.types[let.target].ndim)
            else:
                gen.add(operand, call_of("np.sum", product), _ONE, product)

    def in_terms_of_computed(self, factor: ast.expr) -> ast.expr:
        """Return a partial with names for the calls that the program computes anyway."""
        known = self.computed

        class Share(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                found = known.get(key_of(node))
                return self.generic_visit(node) if found is None else name(found)

        shared: ast.expr = Share().visit(factor) if known and not self.whole else factor
        return shared

    def vanishing(self, let: Let) -> Sequence[str]:
        if self.op.chooses:
            return []
        return [
            operand.id
            for position, operand in enumerate(self.operands)
            if isinstance(operand, ast.Name)
            and self.op.arguments[position] in self.op.rules
            and names_in(self.partial(position, let.target))
        ]

    def is_guarded(self, gen: ReverseCode, target: str, position: int, factor: ast.expr) -> bool:
        """Whether a partial may be infinite or nan where the cotangent is zero."""
        if not gen.is_markable(target):
            return False
        overwritten = self.whole and gen.arrays.is_stored(target)
        if self.is_singular(position, factor):
            return overwritten or target in gen.skipped
        if isinstance(factor, ast.Constant) or not (overwritten or target in gen.skipped):
            return False
        quotient = self.op.name == "divide" and not isinstance(self.operands[1], ast.Constant)
        copied = {copy: array for array, copy in self.kept.items()}
        return quotient or any(copied.get(n, n) in gen.undefined for n in names_in(factor))

    def may_vanish(self, gen: ReverseCode, operand: str, factor: ast.expr) -> bool:
        """Whether a partial of 0 has to be told from the cotangent of an operand that is not used.

        Where a value is not selected, it is not used. A partial that does not depend on the
        arguments of the derivative and is 0 means so, too.
        """
        if self.op.chooses or not gen.is_marked(operand, is_polynomial(self.op, self.operands)):
            return False
        copied = {copy: array for array, copy in self.kept.items()}
        return any(gen.is_active(copied.get(n, n)) for n in names_in(factor))

    def nonzero_name(self, factor: ast.expr) -> str:
        """Return the name of the function that marks a partial of 0."""
        if self.whole:
            return "arrays.nonzero_elements"
        is_complex = self.is_complex and self.may_be_complex(factor)
        return "arrays.complex_nonzero" if is_complex else "runtime.nonzero"

    def may_be_singular(self, by: str | None = None) -> bool:
        """Whether a partial may be infinite where the function is not; all those by an operand."""
        places = [
            self.is_singular(k, operand)
            for k, operand in enumerate(self.operands)
            if isinstance(operand, ast.Name) and by in (None, operand.id)
        ]
        return any(places) if by is None else all(places)

    def is_singular(self, position: int, factor: ast.expr) -> bool:
        """Whether the partial of an operand may be infinite or nan where the function is not."""
        if Fact.SINGULAR not in self.op.facts or isinstance(factor, ast.Constant):
            return False
        if self.op.name == "divide" and position == 0:
            return False  # the quotient is infinite as well
        if self.op.name == "power" and isinstance(self.operands[1], ast.Constant):
            exponent: Any = self.operands[1].value
            return isinstance(exponent, complex) or exponent < 1 or exponent % 1 != 0
        return True

    def moved(self, gen: ForwardCode, operand: str) -> ast.expr:
        """Return the tangent of an operand, marked if it is 0 but what it follows from is moved."""
        found: ast.expr = name(gen.dot(operand))
        is_cotangent = self.op.name == "product"  # its tangent is 0 where nothing uses the value
        if not (is_cotangent or self.whole or self.is_complex):
            for origin in gen.origins(operand):
                found = call_of("runtime.moved", found, name(gen.dot(origin)))
        return found

    def product_name(self) -> str:
        """Return the name of the product that is 0 where its first factor is 0."""
        if self.whole:
            return "arrays.product_of_elements"
        return "arrays.complex_product" if self.is_complex else "runtime.product"

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        if self.whole and self.op.name == "where":
            chosen = [gen.tangent(operand) for operand in self.operands[1:]]
            dots = call_of("np.where", self.operands[0], *chosen)
            gen.set_dot(let, dots, broadcast=self._widens(let, self.operands[1:]))
            return
        found: ast.expr | None = None
        read = {let.target}
        differentiated: list[ast.expr] = []
        for position, operand, factor in self.terms(gen, let):
            differentiated.append(name(operand))
            dot = self.moved(gen, operand) if gen.is_summed(let) else name(gen.dot(operand))
            # a cotangent of 0 passes nothing on, whatever the tangent of the partial
            if self.op.chooses or (self.op.name == "product" and position == 1):
                term: ast.expr = call_of(self.product_name(), factor, dot)
            elif self.is_singular(position, factor):
                term = call_of(self.product_name(), self.moved(gen, operand), factor)
            else:
                term = _product(dot, factor)
            read.update([operand, *names_in(factor)])
            found = term if found is None else ast.BinOp(found, ast.Add(), term)
        arrays = {
            n
            for atom in self.operands
            for n in names_in(atom)
            if isinstance(self.types.get(n), types.Array)
        }
        full = let.target in {n for n in read if n != let.target} or arrays <= read
        fits = full and not (self.whole and self._widens(let, differentiated))
        gen.set_dot(let, found, broadcast=self.whole and not fits)

    def _widens(self, let: Let, operands: Sequence[ast.expr | None]) -> bool:
        """Whether an array has another dtype than its operands and their tangents: ``x + 1j``."""
        kinds = [self.types.get(n) for atom in operands if atom is not None for n in names_in(atom)]
        dtypes = {kind.dtype for kind in kinds if isinstance(kind, types.Array)}
        return bool(dtypes) and self.types[let.target].dtype not in dtypes


_ONE = ast.Constant(1.0)


def _product(g: ast.expr, factor: ast.expr) -> ast.expr:
    match factor:
        case ast.Constant(1):
            return g
        case ast.Constant(-1):
            return ast.UnaryOp(ast.USub(), g)
    return ast.BinOp(g, ast.Mult(), factor)


class Unary(Rule):
    """A linear function of one number, or of every element of an array (`whole`)."""

    def __init__(self, operand: ast.expr, whole: bool, lowering: Lowerer) -> None:
        self.operand = operand
        self.whole = self.fresh = whole
        self._inputs = real_names([operand], lowering)


class Linear(Unary):
    """A conversion or copy: the derivative is that of the input."""

    is_passing = True

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        for operand in self._inputs:
            if gen.is_active(operand):
                if self.whole:
                    shadow = gen.shadow(let.target)
                    gen.add_array(operand, shadow, gen.types[let.target].ndim)
                else:
                    gen.add(operand, name(gen.bar(let.target)), ast.Constant(1.0))

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        expr = let.expr
        for operand in self._inputs:
            # the copy of an array without tangent may get a tangent when it is written to
            gen.set_dot(let, replace_names(expr, {operand: gen.tangent(name(operand))}))


class Read(Rule):
    """A read of elements of an array."""

    def __init__(self, array: str, index: ast.expr) -> None:
        self.array = array
        self.index = index
        self._inputs = [array]

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.set_dot(let, replace_names(let.expr, {self.array: gen.dot(self.array)}))


class Load(Read):
    """A read of one element."""

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        if gen.is_active(self.array):
            gen.add_element(self.array, self.index, name(gen.bar(let.target)))


class View(Rule):
    """A view of an array, or of a part of it."""

    def __init__(self, base: str, part: bool = False) -> None:
        self.base = base
        self.is_passing = not part
        self._inputs = [base]

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        assert self.base is not None
        gen.set_handle(let.target, replace_names(let.expr, {self.base: gen.dot(self.base)}))


class Alloc(Rule):
    """A new array whose shape is given by an argument or by the array `like`."""

    fresh = True

    def __init__(self, arguments: Atoms, like: str | None = None) -> None:
        self.arguments = arguments
        self.like = like

    def zeros(self, let: Let) -> ast.expr:
        return _zeros_for(let, self.arguments, self.like)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.set_handle(let.target, self.zeros(let))


def _zeros_for(let: Let, arguments: Atoms, like: str | None) -> ast.expr:
    if like is not None:
        return call_of("np.zeros_like", name(like))
    if arguments:
        assert isinstance(let.expr, ast.Call)
        keywords = [k for k in let.expr.keywords if k.arg == "dtype"]
        positional = list(arguments[:1])
        if len(arguments) > 1 and not keywords:
            keywords = [ast.keyword("dtype", arguments[1])]
        return ast.Call(name("np.zeros"), positional, keywords)
    return call_of("np.zeros_like", name(let.target))


class Gather(Read):
    """A read of elements selected by an array of positions or booleans."""

    fresh = True

    def contents(self, let: Let) -> list[str]:
        return names_in(self.index)

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        if not gen.is_active(self.array):
            return
        shadow = gen.shadow(self.array)
        places = call_of("arrays.places", shadow)
        chosen = ast.Subscript(places, self.read(self.index), ast.Load())
        gen.line(call_of("arrays.scatter", shadow, chosen, gen.shadow(let.target)))
