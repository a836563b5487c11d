"""Differentiation rules of all operations."""
