"""What proves a kernel: the interpreter with honest floats, guards, compilers, a fake driver."""
