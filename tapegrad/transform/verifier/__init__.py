"""The verifier: checks generated code without knowing how it was generated.

It reads the text of a generated module. Every pass is a separate module, which visits the
functions in the order in which they run:

`purposes`
    What functions and names are said to be for is possible, and is said of all (`purpose`).
`definedness`
    Every name that is read is defined on every path to it.
`values`
    Every value that reverse code reads equals that of the forward code: it is still live,
    recomputed from the same values and elements, or read from where it was kept; loops of reverse
    code have the same iterations as those of the forward code.
`tape`
    What is pushed is popped, in reverse order, on every path and in every iteration; there is room
    for it.

`primal`
    The forward code, and that of forward mode, has all statements of the function, in order.
`adjoint`
    The reverse code computes the cotangents that follow from the forward code: no contribution is
    missing, repeated or out of order, and nothing is left uncleared.
`tangents`
    The code of forward mode computes the tangents that follow from the statements of the function
    in it, each from the values of the operation; every array has a separate array of tangents.

Helpers: `cotangents` finds the names of cotangents, `forward_names` those of tangents, `memory` the
names that may alias; `numbering`, `keeping` and `turning` are parts of `values`. `adjoint` and
`tangents` follow random paths through the code (`walk`, `outcomes`, `frames`); `operands` finds
what operations read, `events` derives the expected cotangents and tangents, and `linear` provides
the maps that stand for derivatives. `sources` finds what statements read; `reading` and `calls` are
parts of `adjoint`; `tangent_reading`, `tangent_stores`, `tangent_calls` and `pushforward` of
`tangents`.

The language is small (`code`): assignments, ``if``, ``for``, ``while``, ``break``, calls,
``return`` and ``raise``. Anything else is refused, so no pass has to guess.
"""

from tapegrad.transform.verifier.verify import verify as verify
