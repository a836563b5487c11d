"""The tape: records of what was computed, and the compiled sweep that runs over them backwards."""
