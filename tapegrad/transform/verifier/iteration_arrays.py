"""Arrays that belong to one iteration: made in it, and written by no other one.

Their elements are final at the end of the iteration. So in the reverse of the iteration they are
what they were then, whatever later iterations wrote to theirs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tapegrad.transform.syntax import leaves, text_of
from tapegrad.transform.verifier.code import POPS, Code, blocks, is_in, module_call, pairs_in
from tapegrad.transform.verifier.memory import Memory

Path = tuple[int, ...]  # the ids of the loops around a statement


def arrays_of_iterations(codes: list[Code], memory: Memory) -> dict[int, set[str]]:
    """Return the alias classes of the arrays of iterations, by the ids of the loops.

    Such a class has one array that is made anew, by one statement in the loop, and names of views
    of it; nothing outside of the loop names or writes it.
    """
    made: dict[str, set[str]] = {}  # texts of what is assigned to each name
    first: dict[str, Path] = {}
    new: dict[str, list[str]] = {}  # by alias class
    written: dict[str, list[Path]] = {}
    names: dict[str, list[str]] = {}
    for name in memory.arrays - memory.bars:
        names.setdefault(memory.of(name), []).append(name)
    lost = {memory.of(p) for code in codes for p in code.parameters if p in memory.arrays}
    for code in codes:
        for statement, path in _walk(code.body, ()):
            for array in memory.written(statement):
                written.setdefault(memory.of(array), []).append(path)
            for target, value in pairs_in(statement):
                if module_call(value) in POPS:
                    continue
                for leaf in leaves(target):
                    if not is_in(leaf, memory.arrays):
                        continue
                    text = text_of(value)
                    if leaf is not target or isinstance(value, ast.Name):
                        lost.add(memory.of(leaf.id))
                    elif leaf.id not in made and not memory.shared(value):
                        new.setdefault(memory.of(leaf.id), []).append(leaf.id)
                    made.setdefault(leaf.id, set()).add(text)
                    first.setdefault(leaf.id, path)
    found: dict[int, set[str]] = {}
    for of, group in names.items():
        if of in lost or len(new.get(of, ())) != 1 or not first[new[of][0]]:
            continue
        path = first[new[of][0]]
        if any(len(made.get(n, ())) != 1 or first[n][: len(path)] != path for n in group):
            continue
        if all(place[: len(path)] == path for place in written.get(of, ())):
            found.setdefault(path[-1], set()).add(of)
    return found


def _walk(body: list[ast.stmt], path: Path) -> Iterator[tuple[ast.stmt, Path]]:
    for statement in body:
        yield statement, path
        inner = path if isinstance(statement, ast.If) else (*path, id(statement))
        for block in blocks(statement):
            yield from _walk(block, inner)
