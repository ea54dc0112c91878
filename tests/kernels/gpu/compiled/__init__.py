"""Kernels compiled for chips that are not here, and launched on a driver that is none."""
