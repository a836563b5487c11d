"""Compiled loops: how they are generated from the op table, compiled, cached and called."""
