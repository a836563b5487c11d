"""How it is measured: times in turn, memory of a process, and how numbers and tables are printed.

Nothing here knows a program; all other folders import this one.
"""
