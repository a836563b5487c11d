"""What names in generated code say: the forms of names that the generator uses.

The text of generated code says nothing else of what is half of a function, a cotangent or a
tangent. A name only says what is to be checked: what a cotangent or tangent is the derivative of is
proved from the statements.
"""

from __future__ import annotations


def is_forward(function: str) -> bool:
    """Whether a function is the forward half of one."""
    return _numbered(function, "_forward") is not None


def is_reverse(function: str) -> bool:
    """Whether a function is the reverse half of one."""
    return _numbered(function, "_reverse") is not None


def is_tangent(function: str) -> bool:
    """Whether a function is one of forward mode, which has no reverse half."""
    return _numbered(function, "_tangent") is not None


def reverse_of(function: str) -> str:
    """Return the reverse half that belongs to a forward half, other functions as they are."""
    found = _numbered(function, "_forward")
    return function if found is None else f"{found[0]}_reverse{found[1]}"


def forward_of(function: str) -> str:
    """Return the forward half that belongs to a reverse half, other functions as they are."""
    found = _numbered(function, "_reverse")
    return function if found is None else f"{found[0]}_forward{found[1]}"


def whole_of(function: str) -> str:
    """Return the function that a half or a function of forward mode is of, or the function."""
    for ending in ("_forward", "_reverse", "_tangent"):
        if (found := _numbered(function, ending)) is not None:
            return found[0]
    return function


def is_seed(name: str) -> bool:
    """Whether a name is the cotangent of a result that the user gives."""
    stem, _, number = name.rpartition("_")
    return number.isdecimal() and ending_of(f"_{stem}", "_g_seed") == f"_{stem}"


def whole_value_of(name: str) -> str:
    """Return the name that one of a part of a value is made from, or the name itself."""
    stem, _, number = name.rpartition("_")
    return stem.removesuffix("_part") if number.isdecimal() and stem.endswith("_part") else name


def whole_tangent_of(name: str) -> str:
    """Return the name of the tangent of a recurrence, ``slope * x_dot + rest``, of its parts."""
    return name.removesuffix(ending_of(name, "_slope") or ending_of(name, "_rest"))


def ending_of(name: str, ending: str) -> str:
    """Return an ending with the digits after it, "" for names that have another one."""
    _, found, number = name.rpartition(ending)
    return found + number if found and (number.isdecimal() or not number) else ""


def _numbered(name: str, ending: str) -> tuple[str, str] | None:
    """Return what is before an ending and the number after it, None for other names."""
    stem, found, number = name.rpartition(ending)
    is_number = not number or (number[0] == "_" and number[1:].isdecimal())
    return (stem, number) if found and is_number else None
