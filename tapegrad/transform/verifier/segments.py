"""The reverse of a segment of a checkpointed loop computes it again from what it was given.

A segment is a function ``f``; its pullback, one function with both halves, is checked like others.
Its two halves have to be (``copied`` are some of the parameters, ``made`` some arrays of the
result)::

    def f_forward(..., tape, top):
        copied_kept = np.copy(copied)
        tape, top = runtime.push_array(tape, top, copied_kept, kind)
        result = f(...)
        made_bar = np.zeros_like(made)
        tape, top = runtime.push_array(tape, top, made_bar, kind)
        return result, made_bar, tape, top

    def f_reverse(..., bars, seeds, tape, top):
        made_bar, top = runtime.pop_array(tape, top, kind)
        copied_kept, top = runtime.pop_array(tape, top, kind)
        numbers = f_pullback(..., bars, seeds and made_bar)
        return numbers, top

The copies have to include all arrays that ``f`` writes. If nothing is kept, neither half has a
tape.
"""

from __future__ import annotations

import ast

from tapegrad.transform.ir import Role
from tapegrad.transform.nodes import names, tuple_of
from tapegrad.transform.syntax import key_of, leaves
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier.code import (
    Code,
    call_in,
    called,
    calls,
    module_call,
    name_of,
    names_of,
)
from tapegrad.transform.verifier.cotangents import TAPE
from tapegrad.transform.verifier.numbering import Needs
from tapegrad.transform.verifier.summary import Summary


def check_segment(
    codes: dict[str, Code],
    summaries: dict[str, Summary],
    reverse_name: str,
    function: str,
    pullback: str,
    primal: Code,
) -> Needs:
    """Check the halves of a segment.

    Parameters
    ----------
    codes, summaries
        The functions of the module, and their summaries.
    reverse_name, function, pullback
        The names of the reverse function, of the segment and of its pullback.
    primal
        The function that the pullback was checked against.

    Returns
    -------
    Needs
        What the reverse function needs unchanged.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    reverse, own = codes[reverse_name], codes[function]
    forward = codes[reverse.purpose.other]
    if key_of(own.body) != key_of(primal.body) or own.parameters != primal.parameters:
        raise own.wrong("the segment is not what its pullback was made from", own.body[0])
    kept = _check_forward(forward, own, function)
    written = {own.parameters[place] for place in summaries[function].writes}
    if not written.issubset(kept.values()):
        raise forward.wrong("an array that the segment writes is not kept", forward.body[0])
    _check_reverse(forward, reverse, codes[pullback], pullback, kept)
    found = Needs()
    for place, param in enumerate(reverse.parameters):
        if param in own.parameters:
            if param in kept.values():
                found.unread.add(place)
            elif place in summaries[reverse_name].arrays or place in summaries[function].arrays:
                found.params.add(place)
    return found


def _check_forward(forward: Code, own: Code, function: str) -> dict[str, str]:
    """Check the forward half; return the names of the copies, each with that of its array."""
    kept: dict[str, str] = {}
    made: list[str] = []
    pushed: list[str] = []
    result: list[str] | None = None
    shown: ast.expr = ast.Constant(None)
    for node in forward.body[:-1]:
        target, value = _parts(forward, node)
        module = module_call(value)
        given = list(map(name_of, value.args))
        if module == ("np", "copy") and result is None and given[0] in own.parameters:
            kept[name_of(target)] = given[0]
        elif module == ("np", "zeros_like") and result is not None and given[0] in result:
            made.append(name_of(target))
        elif module == ("runtime", "push_array") and _is_tape(target):
            pushed.append(given[2])
            if given[:2] != list(TAPE) or given[2] != [*kept, *made][-1]:
                raise forward.wrong("not what a segment pushes", node)
        elif called(value) == function and given == own.parameters and result is None:
            shown = target or shown
            result = names_of(node.targets[0]) if isinstance(node, ast.Assign) else []
        else:
            raise forward.wrong("not what the forward half of a segment does", node)
    end = forward.body[-1]
    tape = [*TAPE] if pushed else []
    if result is None or pushed != [*kept, *made] or forward.parameters != [*own.parameters, *tape]:
        raise forward.wrong("it does not call the segment, or keeps something else", end)
    if not _returns(end, [shown, *names([*made, *tape])]):
        raise forward.wrong("not what a segment returns", end)
    return kept


def _check_reverse(
    forward: Code, reverse: Code, pullback: Code, name: str, kept: dict[str, str]
) -> None:
    """Check the reverse half."""
    values = [n.value for n in forward.body if isinstance(n, ast.Assign)]
    pushes = [n for n in values if calls(n, [("runtime", "push_array")])]
    *pops, call, end = reverse.body
    popped = []
    for node, push in zip(pops, reversed(pushes), strict=True):
        target, value = _parts(reverse, node)
        if (
            module_call(value) != ("runtime", "pop_array")
            or not is_code(value, "runtime.pop_array(tape, top, kind)", kind=push.args[3])
            or target is None
            or not is_code(target, "array, top", array=push.args[2])
        ):
            raise reverse.wrong("it takes from the tape what was not kept there", node)
        popped.append(name_of(push.args[2]))
    _, value = _parts(reverse, call)
    given = list(map(name_of, value.args))
    copies = {array: copied for copied, array in kept.items()}
    own = [n for n in forward.parameters if n not in TAPE]
    arrays = [n for n in reversed(popped) if n not in kept]  # cotangents of results
    wanted: list[str] = []
    seeds = {n for n in pullback.purpose.names if pullback.purpose.has_role(n, Role.SEED)}
    for param in pullback.parameters:
        if param in own:
            wanted.append(copies.get(param, param))
        elif param in seeds and param not in reverse.parameters:
            wanted.append(arrays.pop(0) if arrays else "")
        else:
            wanted.append(param)
    if called(value) != name or given != wanted or arrays:
        raise reverse.wrong("not the call of the pullback of the segment", call)
    bars = [n for n in pullback.parameters if n not in own and n not in seeds]
    numbers = [n for n in reverse.parameters if n in seeds]
    if reverse.parameters != [*own, *bars, *numbers, *(TAPE if pops else ())]:
        raise reverse.wrong("not the parameters of the reverse half of a segment", call)
    numbers = list(map(name_of, leaves(call.targets[0]))) if isinstance(call, ast.Assign) else []
    if not _returns(end, names([*numbers, *TAPE[1:]] if pops else numbers)):
        raise reverse.wrong("not what the reverse half of a segment returns", end)


def _is_tape(target: ast.expr | None) -> bool:
    return target is not None and is_code(target, "tape, top")


def _returns(node: ast.stmt, parts: list[ast.expr]) -> bool:
    """Whether a statement returns some values."""
    value = parts[0] if len(parts) == 1 else tuple_of(parts) if parts else ast.Constant(None)
    return key_of(node) == key_of(ast.Return(value))


def _parts(code: Code, node: ast.stmt) -> tuple[ast.expr | None, ast.Call]:
    """Return the target and the call of a statement."""
    call = call_in(node)
    if call is None or call.keywords:
        raise code.wrong("not what the functions of a segment do", node)
    return (node.targets[0] if isinstance(node, ast.Assign) else None), call
