"""Whether the functions that run compute what the functions that were verified compute.

The verifier reads code as it was generated. What is run may be made of it by passes that keep rows,
unroll loops, cut them into blocks, or share them among threads. Here both are run, by Python, for
the same random arguments, and what they return and write is compared. The passes are not looked
at, so nothing that they assume is assumed here.

`field`
    Numbers that stand for floats: elements of a prime field, with which sums and products are exact
    in any order. Other functions are random ones: equal arguments give equal results.
`array_functions`
    NumPy's functions of arrays of such numbers.
`runtime_functions`
    The functions of the runtime: tapes, scratch memory, workers.
`meanings`
    What the names in a generated module, and in functions that it calls, stand for.
`comparison`
    Random arguments, the runs, and what differs.

This is random interpretation (Gulwani and Necula, "Discovering affine equalities using random
interpretation", POPL 2003), for whole programs: the outcome of a comparison of numbers is random,
too, and the same in both runs.
"""
