"""Parallel code for the ``prange`` loops of generated functions.

Derivatives are generated, and verified, as code that runs in order. This package reads that code
again. Where the iterations of a ``prange`` loop, forward or reverse, are proved independent, it
adds functions that share them among threads (`module`). A loop without a proof runs in order, with
a warning.
"""
