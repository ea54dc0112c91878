"""The same formulas for GPUs, in Triton: one file a noun, each with its kernels and a thin wrapper.

A wrapper takes tensors and the buffers that results go to, launches, and returns nothing. It
allocates nothing, waits for nothing and looks into no tensor, so a step of them can be captured as
a graph and replayed. Whatever varies from step to step is in a tensor; sizes of buckets are
constants. A row has a tile of its own whose shape its number of neighbours does not change, which
keeps the law of all kernels. Rows that only fill a bucket read index 0 and write to themselves.

Nothing imports these modules where there is no GPU. Functions of Triton have no Python types,
hence `no_type_check`.
"""
