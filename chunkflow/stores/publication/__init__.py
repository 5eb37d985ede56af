"""How a finished output gets its name: in one step, all outputs of a call or none, and what dead runs left behind."""
