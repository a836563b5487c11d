"""Measurements of one question each.

Most are commands: ``python -m benchmarks.studies.gpu``. Functions named ``measure_...`` are called
by `benchmarks.reports.versus`, which runs one of them alone with ``--workload``.
"""
