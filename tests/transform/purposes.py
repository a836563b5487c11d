"""What functions and names are for, in generated code that a test has as a text only.

The generator says it when it makes a module. In a text, names are all that says it: those of the
halves of ``f`` are ``f_forward`` and ``f_reverse``, that of the cotangent of ``x`` is ``x_bar``.
"""

import re

from tapegrad.transform.ir import Role, Value
from tapegrad.transform.verifier.code import functions_of, name_of
from tapegrad.transform.verifier.purpose import Half, Purpose

HALVES = {"forward": Half.FORWARD, "reverse": Half.REVERSE, "tangent": Half.TANGENT}
OTHER = {"forward": "reverse", "reverse": "forward"}
ROLES = (
    (Role.SLOPE, re.compile(r"(.+)_slope\d*$")),
    (Role.REST, re.compile(r"(.+)_rest\d*$")),
    (Role.SEED, re.compile(r"g_seed\d*_(\d+)$")),
    (Role.PART, re.compile(r"(.+)_part_\d+$")),
    (Role.RETURNED, re.compile(r"((?:co)?tangents)_\d+$")),
    (Role.COTANGENT, re.compile(r"(.+)_bar\d*$")),
    (Role.TANGENT, re.compile(r"(.+)_dot\d*$")),
)
NOT_IN = {Half.TANGENT: {Role.SEED, Role.PART, Role.COTANGENT}}


def purposes_of(text, uncalled=(), primals=None):
    """Return what functions are for, by their names."""
    codes = [code for one in (text, *uncalled) for code in functions_of(one)]
    found = {}
    for code in codes:
        name, half, other = code.name, None, ""
        if parts := re.fullmatch(r"(.+)_(forward|reverse|tangent)((?:_\d+)?)", code.name):
            name, ending, number = parts.groups()
            half = HALVES[ending]
            other = f"{name}_{OTHER[ending]}{number}" if ending in OTHER else ""
        found[code.name] = Purpose(half, name if half else "", other)
    for code in codes:
        purpose = found[code.name]
        halves = [one for one in codes if one.name in (code.name, purpose.other)]
        halves.sort(key=lambda one: not found[one.name].is_forward)
        known = set()
        for one in primals or {}:
            if one in (code.name, purpose.other):
                known = functions_of(primals[one].text)[0].locals
        names = {n for one in halves for n in one.locals} - known
        roles = {}
        for name in sorted(names):
            for role, form in ROLES:
                if role not in NOT_IN.get(purpose.half, ()) and (stem := form.fullmatch(name)):
                    roles[name] = Value(role, stem[1])
                    break
        results = [name_of(leaf) for one in halves[:1] for leaf in one.returned]
        for name, value in roles.items():
            if value.role is Role.SEED and int(value.of) < len(results):
                roles[name] = Value(Role.SEED, results[int(value.of)])
        found[code.name] = Purpose(purpose.half, purpose.of, purpose.other, roles)
    return found
