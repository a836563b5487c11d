"""The verifier: what generated code must fulfil, checked without knowing how it was made.

It reads the text of a generated module. Every pass is a module of its own, which goes over the
functions in the order in which they run:

`definedness`
    Every name that is read is defined on every path to it.
`values`
    Every value that reverse code reads is the one that the forward code had: still there, computed
    again from the same values and elements, or taken from where it was kept; loops of reverse code
    have the iterations of those of the forward code.
`tape`
    What is pushed is popped, in reverse order, on every path and in every iteration; there is room
    for it.

`primal`
    The forward code, and that of forward mode, has all statements of the function, in their order.
`adjoint`
    The reverse code computes the cotangents that follow from the forward code: nothing is missing,
    done twice, in another order, or not cleared.
`tangents`
    The code of forward mode computes the tangents that follow from the statements of the function
    in it, each from the values of the operation; every array has an array of tangents of its own.

What they are built on: `cotangents` finds the names of cotangents, `forward_names` those of
tangents, `memory` the names that may show elements of the same array, `numbering`, `keeping` and
`turning` are parts of `values`. `adjoint` and `tangents` go along drawn ways through the code
(`walk`, `outcomes`, `frames`), on which `operands` are what operations read, `events` what follows
for cotangents and tangents, and `linear` the maps that stand for derivatives. What statements read
is found by `sources`; `reading` and `calls` are parts of `adjoint`, `tangent_reading`,
`tangent_stores`, `tangent_calls` and `pushforward` of `tangents`.

The language is small (`code`): assignments, ``if``, ``for``, ``while``, ``break``, calls,
``return`` and ``raise``. Anything else is refused, so that no pass has to guess.
"""

from tapegrad.transform.verifier.verify import verify as verify
