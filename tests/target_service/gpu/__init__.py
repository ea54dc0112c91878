"""The target's step on a GPU, proven without one: interpreted, and launched on a fake driver."""
