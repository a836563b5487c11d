"""Every cotangent goes where it belongs.

A cotangent that is computed is used. An operation whose result has a cotangent that is read adds to
the cotangents of all its operands that have any, as often as it uses them. A store has its reverse:
the cotangent of the element is taken, and cleared. This is bookkeeping of names, without
derivatives: that something is added is checked, not how much.
"""

from __future__ import annotations

import ast

from tapegrad.transform.verifier.code import Code, called, module_call, names_in, paired, targets
from tapegrad.transform.verifier.cotangents import FORWARD, TAPE, Cotangents
from tapegrad.transform.verifier.memory import SHAPE

# whose derivative is zero, or that have none by all or some arguments
_FLAT = frozenset(
    [
        *("floor", "ceil", "trunc", "fix", "rint", "round", "around", "sign", "heaviside"),
        *("argmin", "argmax", "argsort", "searchsorted", "digitize", "nonzero", "where"),
        *("isnan", "isfinite", "isinf", "signbit", "zeros_like", "ones_like", "empty_like"),
        *("shape", "size", "ndim", "len", "count_nonzero", "bincount", "sign", "any", "all"),
        *("zeros", "ones", "empty", "eye", "arange", "int64", "int32", "bool_", "stop_gradient"),
        *("allclose", "array_equal", "isclose", "floor_divide", "spacing", "full_like"),
    ]
)


class Contributions:
    """The pass over one function, or over a forward function and its reverse.

    Parameters
    ----------
    codes
        The functions.
    cotangents
        Their names.
    """

    def __init__(self, codes: list[Code], cotangents: Cotangents) -> None:
        self.codes, self.cotangents = codes, cotangents
        self.suffix = cotangents.suffix
        self.bars = cotangents.names
        self.primal = {n for code in codes for n in code.locals if n not in self.bars}
        self.reads: dict[str, int] = {}
        self.links: dict[str, list[set[str]]] = {}  # what stands in a statement with a cotangent
        self.parent: dict[str, str] = {}
        self.makers: dict[str, ast.expr] = {}
        self.returned: set[str] = set()
        self.chosen: set[str] = set()  # of which elements are taken that an array chooses
        self.cleared: set[tuple[str, str]] = set()
        self.statements = [
            (code, s)
            for code in codes
            for s in code.statements
            if isinstance(s, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return))
        ]

    def run(self) -> None:
        """Raise an error where a cotangent is dropped."""
        for _, statement in self.statements:
            self._read(statement)
        self._find_makers()
        self._link()
        self._check_calls()
        seen: set[str] = set()
        for code, statement in self.statements:
            if self.cotangents.is_cotangent(statement):
                self._check_used(code, statement)
            elif isinstance(statement, ast.Assign):
                for target, value in paired(statement.targets[0], statement.value):
                    if isinstance(target, ast.Name) and target.id not in seen:
                        self._check(code, statement, target.id, value)
                        if not isinstance(value, ast.Name):
                            seen.add(target.id)
                    elif isinstance(target, ast.Subscript):
                        self._check_store(code, statement, target, value)

    def _find_makers(self) -> None:
        """Find what makes the values, and which are copies of each other."""
        for _, statement in self.statements:
            if not isinstance(statement, ast.Assign) or self.cotangents.is_cotangent(statement):
                continue
            for target, value in paired(statement.targets[0], statement.value):
                if not isinstance(target, ast.Name):
                    continue
                if isinstance(value, ast.Name):
                    one, two = self._of(target.id), self._of(value.id)
                    if one != two:
                        self.parent[two] = one
                else:
                    self.makers.setdefault(target.id, value)

    def _of(self, name: str) -> str:
        """Return the name that stands for all copies."""
        while name in self.parent:
            name = self.parent[name]
        return name

    def _read(self, statement: ast.stmt) -> None:
        for node in names_in(statement):
            if node.id in self.bars:
                if isinstance(statement, ast.Return):
                    self.returned.add(node.id)
                    continue
                self.reads[node.id] = self.reads.get(node.id, 0) + 1
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and module_call(node) == ("arrays", "taken"):
                self.chosen.update(n.id for n in names_in(node))
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if node.value.id in self.bars:
                    key = (node.value.id, ast.unparse(node.slice))
                    if isinstance(node.ctx, ast.Store):
                        self.cleared.add(key)

    def _link(self) -> None:
        """Find which cotangents stand in one statement, or in statements joined by helpers."""
        found: list[set[str]] = []
        made: dict[str, set[str]] = {}
        for _, statement in self.statements:
            if not self.cotangents.is_cotangent(statement):
                if not isinstance(statement, ast.Assign) or not self.cotangents.is_forward(
                    called(statement.value)
                ):
                    continue
            names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} & self.bars
            for name in list(names):
                names |= made.get(name, set())
            for name in targets(statement):
                if name in self.bars and not self._is_bar(name):
                    made[name] = made.get(name, set()) | names
            found.append(names)
        for names in found:
            for name in names:
                self.links.setdefault(name, []).append(names)

    def _is_bar(self, name: str) -> bool:
        """Whether a name is the cotangent of a name, and no helper."""
        return name.endswith(self.suffix) and name.removesuffix(self.suffix) in self.primal

    def _check_used(self, code: Code, statement: ast.stmt) -> None:
        if not isinstance(statement, (ast.Assign, ast.AugAssign)):
            return
        for name in targets(statement):
            if name not in self.bars or self.reads.get(name) or name in self.returned:
                continue
            if self._is_bar(name):
                stem = name.removesuffix(self.suffix)
                maker = self.makers.get(stem)
                if maker is None or not self._depends(maker, self._of(stem)):
                    continue
                if isinstance(maker, ast.Subscript) and isinstance(statement.value, ast.Subscript):
                    continue  # a view of the cotangents of an array
            raise code.wrong(f"{name} is computed and not used", statement)

    def _check_calls(self) -> None:
        """Check that the reverse of every call is called."""
        for code, statement in self.statements:
            function = called(getattr(statement, "value", None))
            if function is not None and self.cotangents.is_forward(function):
                pair = FORWARD.sub(r"_reverse\1", function)
                if self._count(function) > self._count(pair):
                    raise code.wrong(f"{pair} is not called", statement)

    def _count(self, function: str) -> int:
        return sum(called(getattr(s, "value", None)) == function for _, s in self.statements)

    def _depends(self, value: ast.expr, group: str | None = None) -> bool:
        """Whether a value is known to depend on something, not of a group, with a cotangent."""
        return any(
            n + self.suffix in self.bars and (group is None or self._of(n) != group)
            for n in operands(value)
        )

    def _check(self, code: Code, statement: ast.stmt, target: str, value: ast.expr) -> None:
        bar = target + self.suffix
        if bar not in self.bars or not self.reads.get(bar):
            return
        for name, count in operands(value).items():
            of = name + self.suffix
            if of not in self.bars:
                continue
            if self._of(name) == self._of(target):
                if isinstance(value, ast.Name) and self.reads.get(bar):
                    self._check_copy(code, statement, name)
                continue
            maker = self.makers.get(name)
            if maker is not None and not self._depends(maker):
                continue  # of what goes round a loop with it
            found = sum(of in names for names in self.links.get(bar, ()))
            if found < count:
                what = f"the cotangent of {target} does not go to that of {name}"
                raise code.wrong(what, statement)

    def _check_copy(self, code: Code, statement: ast.stmt, name: str) -> None:
        """Check that a name has a part in the cotangents of what is a copy of it."""
        of, group = name + self.suffix, self._of(name)
        maker = self.makers.get(name)
        if maker is not None and not self._depends(maker):
            return
        if any(self._of(n.removesuffix("_slope")) == group for n in self.bars - self.primal):
            return  # a product with the slope of an iteration
        for names in self.links.get(of, ()):
            for other in names - {of}:
                stem = other.removesuffix(self.suffix)
                if self._of(stem) == group:
                    return
        raise code.wrong(f"the cotangent of {name} has no part in that of its copy", statement)

    def _check_store(
        self, code: Code, statement: ast.Assign, target: ast.Subscript, value: ast.expr
    ) -> None:
        if not isinstance(target.value, ast.Name) or target.value.id in TAPE:
            return
        bar = target.value.id + self.suffix
        if bar not in self.bars or not self.reads.get(bar):
            return
        key = (bar, ast.unparse(target.slice))
        if isinstance(value, ast.Name) and value.id + self.suffix in self.bars:
            if not any(bar in names for names in self.links.get(value.id + self.suffix, ())):
                raise code.wrong(
                    f"the cotangent of what is stored does not go to {value.id}", statement
                )
        if key not in self.cleared and bar not in self.chosen:
            raise code.wrong("the cotangent of what is overwritten is not cleared", statement)


def operands(node: ast.expr) -> dict[str, int]:
    """Return the names that a value depends on smoothly, with how often an operation uses them.

    What is not understood has none.
    """
    if isinstance(node, ast.Name):
        return {node.id: 1}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return operands(node.operand)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)):
            if isinstance(node.op, ast.Mult) and any(map(_is_zero, (node.left, node.right))):
                return {}
            found = operands(node.left)
            for name, count in operands(node.right).items():
                found[name] = found.get(name, 0) + count
            return found
        return operands(node.left) if isinstance(node.op, ast.Pow) else {}
    if isinstance(node, ast.Subscript):
        return operands(node.value) if isinstance(node.value, ast.Name) else {}
    if isinstance(node, ast.Attribute):
        return {} if node.attr in SHAPE else operands(node.value)
    if isinstance(node, ast.Call):
        found_call = module_call(node)
        if found_call is not None:
            if found_call[0] not in ("np", "math", "np.linalg") or found_call[1] in _FLAT:
                return {}
            found = {}
            for argument in node.args:
                if isinstance(argument, ast.Name):
                    found[argument.id] = 1
            return found
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            *("sum", "mean", "prod", "copy", "reshape", "ravel", "flatten", "transpose"),
            *("var", "std", "cumsum", "max", "min", "dot"),
        ):
            return operands(node.func.value)
    return {}


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
