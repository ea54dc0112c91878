"""The engine of a GPU, run by Triton's interpreter."""
