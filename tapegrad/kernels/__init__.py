"""Compiled loops: generating them from the op table, compiling, caching and calling them."""
