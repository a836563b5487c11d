"""Whether functions compute what they should, by runs for the same random arguments.

A derivative is compared with the function as its author wrote it. What runs is compared with what
was verified: it may be made of that by passes that keep rows, unroll loops, cut them into blocks,
or share them among threads. All are run by Python, and what they return and write is compared. How
code is made is not looked at, so nothing that is assumed there is assumed here.

`field`
    Numbers that stand for floats: elements of a prime field, with which sums and products are exact
    in any order. Other functions are random ones: equal arguments give equal results.
`slopes`
    The slopes of those random functions.
`array_functions`, `linear_algebra`
    NumPy's functions of arrays of such numbers.
`runtime_functions`
    The functions of the runtime: tapes, scratch memory, workers.
`meanings`
    What the names in a generated module, and in functions that it calls, stand for.
`comparison`
    Random arguments, the runs of two functions, and what differs.
`derivatives`
    Runs of a function and its derivative.

This is random interpretation (Gulwani and Necula, "Discovering affine equalities using random
interpretation", POPL 2003), for whole programs: the outcome of a comparison of numbers is random,
too, and the same in both runs.
"""
