"""The verifier: what generated code must fulfil, checked without knowing how it was made.

It reads the text of a generated module. Every pass is a module of its own, which goes over the
functions in the order in which they run:

`definedness`
    Every name that is read is defined on every path to it.

The language is small (`code`): assignments, ``if``, ``for``, ``while``, ``break``, calls,
``return`` and ``raise``. Anything else is refused, so that no pass has to guess.
"""

from tapegrad.transform.verifier.verify import verify as verify
