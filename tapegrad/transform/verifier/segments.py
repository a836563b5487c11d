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

from tapegrad.transform.syntax import leaves, text_of
from tapegrad.transform.verifier.code import Code, call_in, called, calls, module_call, names_of
from tapegrad.transform.verifier.cotangents import REVERSE, SEED, TAPE
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
    forward = codes[REVERSE.sub(r"_forward\1", reverse_name)]
    if _text(own.body) != _text(primal.body) or own.parameters != primal.parameters:
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


def _text(body: list[ast.stmt]) -> str:
    return "\n".join(map(text_of, body))


def _check_forward(forward: Code, own: Code, function: str) -> dict[str, str]:
    """Check the forward half; return the names of the copies, each with that of its array."""
    kept: dict[str, str] = {}
    made: list[str] = []
    pushed: list[str] = []
    result: list[str] | None = None
    shown = "None"
    for node in forward.body[:-1]:
        target, value = _parts(forward, node)
        module = module_call(value)
        given = list(map(text_of, value.args))
        if module == ("np", "copy") and result is None and given[0] in own.parameters:
            kept[target] = given[0]
        elif module == ("np", "zeros_like") and result is not None and given[0] in result:
            made.append(target)
        elif module == ("runtime", "push_array") and target == "(tape, top)":
            pushed.append(given[2])
            if given[:2] != list(TAPE) or given[2] != [*kept, *made][-1]:
                raise forward.wrong("not what a segment pushes", node)
        elif called(value) == function and given == own.parameters and result is None:
            shown = target or "None"
            result = names_of(node.targets[0]) if isinstance(node, ast.Assign) else []
        else:
            raise forward.wrong("not what the forward half of a segment does", node)
    end = forward.body[-1]
    tape = [*TAPE] if pushed else []
    if result is None or pushed != [*kept, *made] or forward.parameters != [*own.parameters, *tape]:
        raise forward.wrong("it does not call the segment, or keeps something else", end)
    if not _returns(end, [shown, *made, *tape]):
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
        expected = ["tape", "top", text_of(push.args[3])]
        if (
            module_call(value) != ("runtime", "pop_array")
            or list(map(text_of, value.args)) != expected
            or target != f"({text_of(push.args[2])}, top)"
        ):
            raise reverse.wrong("it takes from the tape what was not kept there", node)
        popped.append(text_of(push.args[2]))
    _, value = _parts(reverse, call)
    given = list(map(text_of, value.args))
    copies = {array: copied for copied, array in kept.items()}
    own = [n for n in forward.parameters if n not in TAPE]
    arrays = [n for n in reversed(popped) if n not in kept]  # cotangents of results
    names: list[str] = []
    for param in pullback.parameters:
        if param in own:
            names.append(copies.get(param, param))
        elif SEED.match(param) and param not in reverse.parameters:
            names.append(arrays.pop(0) if arrays else "")
        else:
            names.append(param)
    if called(value) != name or given != names or arrays:
        raise reverse.wrong("not the call of the pullback of the segment", call)
    bars = [n for n in pullback.parameters if n not in own and not SEED.match(n)]
    seeds = [n for n in reverse.parameters if SEED.match(n)]
    if reverse.parameters != [*own, *bars, *seeds, *(TAPE if pops else ())]:
        raise reverse.wrong("not the parameters of the reverse half of a segment", call)
    numbers = [text_of(n) for n in leaves(call.targets[0])] if isinstance(call, ast.Assign) else []
    if not _returns(end, [*numbers, *TAPE[1:]] if pops else numbers or ["None"]):
        raise reverse.wrong("not what the reverse half of a segment returns", end)


def _returns(node: ast.stmt, parts: list[str]) -> bool:
    """Whether a statement returns some values."""
    return text_of(node) == text_of(ast.parse(f"return {', '.join(parts)}"))


def _parts(code: Code, node: ast.stmt) -> tuple[str, ast.Call]:
    """Return the target and the call of a statement."""
    call = call_in(node)
    if call is None or call.keywords:
        raise code.wrong("not what the functions of a segment do", node)
    return (text_of(node.targets[0]) if isinstance(node, ast.Assign) else ""), call
