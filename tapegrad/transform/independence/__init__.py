"""The proof that iterations of a loop of generated code are independent.

It looks at the finished text alone (`plan`): what a loop does with arrays (`uses`), and what it
passes from one iteration to the next (`sums`). Such loops are shared among threads
(`tapegrad.transform.parallel`) and computed in blocks with vector instructions
(`tapegrad.transform.optimize`).
"""
