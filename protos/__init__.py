"""The language of the wire: `*.proto`, the code generated from them, and the values they carry.

`messages` are frozen dataclasses that convert themselves and need no tensors, `tensors` is the
only place where a tensor becomes bytes, and `pairing` is what two services must agree on first.
"""
