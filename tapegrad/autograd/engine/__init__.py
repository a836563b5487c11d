"""The reverse pass and the user's view of the graph that it sweeps."""
