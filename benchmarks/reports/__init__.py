"""Comparisons with other libraries, and the tables and pictures that are made of results.

`versus.py` measures, `page.py` writes the results to the tables of the documentation, `history.py`
plots those of asv.
"""
