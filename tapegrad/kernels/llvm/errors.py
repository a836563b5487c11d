"""What a function gives back when an error leaves it.

numba's code returns from all functions at once, and what they hold is lost. What is large is given
back: intrinsics say how, and all returns of their function with an error go by one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core.callconv import RETCODE_NONE, RETCODE_OK

_Lower: Any = object  # stands for a class of numba's for lowering, before which a class is
_NO_ERROR = (RETCODE_OK.constant, RETCODE_NONE.constant)


def at_error(builder: Any, give_back: Callable[[Any], None]) -> None:
    """Let the function that is written give something back when an error leaves it.

    Parameters
    ----------
    builder
        What writes the function.
    give_back
        Writes code for that, without branches. It may run before or after the code at this place.
    """
    _of(builder.function).append(give_back)


def _of(function: Any) -> list[Callable[[Any], None]]:
    found: list[Callable[[Any], None]] = function.__dict__.setdefault("tapegrad_at_error", [])
    return found


class GivesBack(_Lower):
    """A class of numba's for lowering, for functions that give something back after an error."""

    def lower_function_body(self: Any) -> Any:
        tail = super().lower_function_body()
        writers = _of(self.function)
        if writers:
            _join_errors(self.function, writers)
        return tail


def _join_errors(function: Any, writers: list[Callable[[Any], None]]) -> None:
    returns = [
        (block, block.terminator)
        for block in function.blocks
        if isinstance(block.terminator, ir.Ret) and _is_error(block.terminator.return_value)
    ]
    joint = function.append_basic_block("error")
    builder = ir.IRBuilder(joint)
    status = builder.phi(ir.IntType(32))
    for block, left in returns:
        block.instructions.remove(left)
        block.terminator = None
        ir.IRBuilder(block).branch(joint)
        status.add_incoming(left.return_value, block)
    for write in writers:
        write(builder)
    builder.ret(status)


def _is_error(status: Any) -> bool:
    return not (isinstance(status, ir.Constant) and status.constant in _NO_ERROR)
