"""`make gpu-check`: what no proof without a device shows, measured and compared on one.

Needs nothing but the repository, torch, triton, safetensors, numpy and protobuf.
"""
