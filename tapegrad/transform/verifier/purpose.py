"""What the generator says functions and names of generated code are for.

This only says what is to be checked: that a name holds the cotangent or tangent that it is said to
hold is proved from the statements, and that two functions are halves of one from what they compute.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tapegrad.transform.ir import Role, Value


class Half(enum.Enum):
    """The code for derivatives that a function has, where its callers have the rest."""

    FORWARD = "it keeps what the reverse half needs"
    REVERSE = "it computes cotangents"
    TANGENT = "it computes tangents"


@dataclass(frozen=True)
class Purpose:
    """What a function of a generated module is for.

    Attributes
    ----------
    half
        Which half it is, None if it has both or no code for derivatives.
    of
        The function that it is a half of.
    other
        The other half; functions for tangents have none.
    names
        What its names stand for, other than values of the function it is made from.
    """

    half: Half | None = None
    of: str = ""
    other: str = ""
    names: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward half of a function."""
        return self.half is Half.FORWARD

    @property
    def is_reverse(self) -> bool:
        """Whether it is the reverse half of a function."""
        return self.half is Half.REVERSE

    def has_role(self, name: str, role: Role) -> bool:
        """Whether a name has a role."""
        return name in self.names and self.names[name].role is role


UNKNOWN = Purpose()
