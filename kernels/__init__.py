"""Pure functions on tensors: every op has a formula, a torch reference, and room for faster ones.

Nothing here holds state, does I/O, reads configuration or knows the wire. An op is picked by the
device of its first argument (see `dispatch`). The law all of them keep: a row's bits depend on that
row alone, never on which or how many rows are beside it.
"""
