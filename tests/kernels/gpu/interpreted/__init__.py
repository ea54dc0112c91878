"""Kernels run by Triton's interpreter, in a process with TRITON_INTERPRET=1."""
