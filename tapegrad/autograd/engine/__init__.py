"""The reverse pass, and what programs see of the graph that it runs over."""
