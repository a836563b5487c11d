"""Parallel code for the ``prange`` loops of generated functions.

Derivatives are generated, and verified, as code that runs in order. This package reads that code
again. Where the iterations of a ``prange`` loop, forward or reverse, are proved independent, it
adds functions that share them among threads (`module`). The proof looks at the generated loop alone
(`plan`): what it does with arrays (`uses`), and what it passes from one iteration to the next
(`sums`). A loop without a proof runs in order, with a warning.
"""
