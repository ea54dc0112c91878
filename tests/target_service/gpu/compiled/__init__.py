"""The step as it is compiled, on a driver that is none."""
