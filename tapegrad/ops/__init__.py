"""The op table: every differentiable function, declared once."""
