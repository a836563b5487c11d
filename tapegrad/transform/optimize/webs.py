"""A name for each value of a function, as far as they are apart, and none for copies.

A pass of numba looks at the whole function for every name that is assigned in several places. Most
names of generated code are: what the forward half computes in a loop, the reverse half computes
again under the same name. Here assignments keep a common name only if one use may see both, which
compilers call a web (Muchnick, Advanced Compiler Design and Implementation, section 16.3).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import binding, blocks_of, has, nodes_in, subtree

Seen = dict[str, frozenset[int]]  # the numbers of the assignments that a use of a name may see

_LEFT_ALONE = (
    *(ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr),
    *(ast.With, ast.Try, ast.Delete, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom),
)


def split_names(function: Function) -> bool:
    """Give names of their own to values that have nothing in common but their name.

    Return whether that was possible: functions with statements of other kinds are left alone.
    """
    tree = function.tree
    if has(tree, *_LEFT_ALONE) or len(list(nodes_in(tree, ast.FunctionDef))) > 1:
        return False
    _Assignments(function.facts.is_number).visit(tree)
    _Webs(tree).rename(function.fresh)
    function.is_split = True
    return True


class _Assignments(ast.NodeTransformer):
    """Writes ``x += y`` as ``x = x + y`` where ``x`` is a number."""

    def __init__(self, is_number: Callable[[str], bool]) -> None:
        self.is_number = is_number

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target = node.target
        if not isinstance(target, ast.Name) or not self.is_number(target.id):
            return node
        value = ast.BinOp(ast.Name(target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(ast.Assign([target], value), node)


def drop_copies(function: Function) -> bool:
    """Use values under the names that they have first, instead of copies of these.

    Return whether there are any. `split_names` has to name the values first.
    """
    if not function.is_split:
        return False
    places = _Places(function.tree)
    renamed: dict[str, str] = {}
    for block in places.blocks:
        kept = []
        for at, node in enumerate(block):
            copied = _copied(node)
            if copied is not None and places.is_read_after(copied[0], id(block), at):
                target, value = copied
                value = renamed.get(value, value)
                if places.stores[value] <= 1:
                    renamed[target] = value
                    continue
            kept.append(node)
        block[:] = kept or [ast.Pass()]
    for reads in places.reads.values():
        for name, _ in reads:
            while name.id in renamed:
                name.id = renamed[name.id]
    return bool(renamed)


def _copied(node: ast.stmt) -> tuple[str, str] | None:
    """Return the names in a statement that gives a value a second one."""
    match binding(node):
        case name, ast.Name(id=value):
            return name, value
    return None


class _Places:
    """Where names are assigned and read.

    Attributes
    ----------
    blocks
        The blocks of the function, outer ones first.
    stores
        How often a name is assigned; arguments count.
    reads
        Where names are read, with the places of the statements around in their blocks.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.blocks: list[list[ast.stmt]] = []
        self.stores: Counter[str] = Counter(parameter.arg for parameter in tree.args.args)
        self.reads: dict[str, list[tuple[ast.Name, dict[int, int]]]] = {}
        self._walk(tree.body, {})

    def _walk(self, block: list[ast.stmt], around: dict[int, int]) -> None:
        self.blocks.append(block)
        for at, node in enumerate(block):
            here = {**around, id(block): at}
            for part in _own_parts(node):
                match part:
                    case ast.Name(id=name, ctx=ast.Store()):
                        self.stores[name] += 1
                    case ast.Name(id=name):
                        self.reads.setdefault(name, []).append((part, here))
            for inner in blocks_of(node):
                self._walk(inner, here)

    def is_read_after(self, name: str, block: int, at: int) -> bool:
        """Whether a name is assigned once, and read in later statements of a block alone."""
        reads = self.reads.get(name, ())
        return self.stores[name] == 1 and all(here.get(block, -1) > at for _, here in reads)


def _own_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that are not in its blocks."""
    inner = {id(part) for block in blocks_of(node) for part in block}
    for child in ast.iter_child_nodes(node):
        if id(child) not in inner:
            yield from subtree(child)


def _targets(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in a node that are assigned."""
    return (part for part in nodes_in(node, ast.Name) if isinstance(part.ctx, ast.Store))


class _Webs:
    """The assignments of a function, and which of them belong together."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.names: list[str] = []  # that are assigned, by the numbers of the assignments
        self.parents: list[int] = []  # of assignments in the trees of webs
        self.numbers: dict[int, int] = {}  # of assignments, by the ids of their targets
        self.places: dict[int, tuple[ast.Name, int]] = {}  # names with an assignment, by their ids
        self.seen: Seen = {p.arg: frozenset([self._number(p, p.arg)]) for p in tree.args.args}
        self.parameters = [*self.seen]
        self._block(tree.body)

    def rename(self, fresh: Callable[[str], str]) -> None:
        """Write the names."""
        taken = {*self.parameters}  # whose assignments are the first
        found = {self._root(k): name for k, name in enumerate(self.parameters)}
        for node, number in self.places.values():
            root = self._root(number)
            if root not in found:
                found[root] = fresh(node.id) if node.id in taken else node.id
                taken.add(node.id)
            node.id = found[root]

    def _number(self, node: ast.AST, name: str) -> int:
        """Return the number of an assignment."""
        if id(node) not in self.numbers:
            self.numbers[id(node)] = len(self.names)
            self.parents.append(len(self.names))
            self.names.append(name)
        return self.numbers[id(node)]

    def _root(self, number: int) -> int:
        while self.parents[number] != number:
            self.parents[number] = number = self.parents[self.parents[number]]
        return number

    def _joined(self, numbers: Iterable[int]) -> int:
        """Let assignments belong together; return one of them."""
        roots = {self._root(number) for number in numbers}
        first = min(roots)
        for root in roots:
            self.parents[root] = first
        return first

    # -- the order of statements ----------------------------------------------------------------

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test, then, orelse):
                self._read(test)
                before = self.seen
                self.seen = {}
                for block in [then, orelse]:
                    after, self.seen = self.seen, {**before}
                    self._block(block)
                    self._may_be(after)
            case ast.For(target, over):
                self._read(over)
                self._may_be(self._assigned_in(node))  # by iterations before
                before = {**self.seen}
                self._assign(target)
                for block in blocks_of(node):
                    self._block(block)
                self._may_be(before)
            case ast.While(test):
                self._may_be(self._assigned_in(node))
                before = {**self.seen}
                self._read(test)
                for block in blocks_of(node):
                    self._block(block)
                self._may_be(before)
            case ast.AugAssign(ast.Name(id=name) as target, _, value):
                self._read(value)
                self._joined([self._number(target, name), *self.seen.get(name, ())])
                self._assign(target)
            case _:
                self._read(node)
                self._assign(node)

    def _read(self, node: ast.AST) -> None:
        for part in nodes_in(node, ast.Name):
            if isinstance(part.ctx, ast.Load) and part.id in self.seen:
                self._place(part, self._joined(self.seen[part.id]))

    def _assign(self, node: ast.AST) -> None:
        for part in _targets(node):
            number = self._number(part, part.id)
            self.seen[part.id] = frozenset([number])
            self._place(part, number)

    def _place(self, node: ast.Name, number: int) -> None:
        """Note which assignment a name belongs to."""
        if id(node) in self.places:  # the tree has it twice
            self._joined([number, self.places[id(node)][1]])
        self.places[id(node)] = node, number

    def _assigned_in(self, node: ast.stmt) -> Seen:
        """Return all assignments in a statement."""
        found: dict[str, set[int]] = {}
        for part in _targets(node):
            found.setdefault(part.id, set()).add(self._number(part, part.id))
        return {name: frozenset(numbers) for name, numbers in found.items()}

    def _may_be(self, other: Seen) -> None:
        """Note that names may have other values as well."""
        empty: frozenset[int] = frozenset()
        names = self.seen.keys() | other.keys()
        self.seen = {n: self.seen.get(n, empty) | other.get(n, empty) for n in names}
