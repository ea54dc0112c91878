"""Both products a head of Kimi-K2.5's latent attention, of one GPU of eight and of all heads."""

from kernels.gpu.head_linear import head_linear
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Step, empty
from tests.kernels.gpu.specs.linear import MULTIPLIES

ROWS, LATENT, UNROTATED, ROTATED, VALUE = 128, 512, 128, 64, 128


def _products(heads: int) -> Step:
    """To the latent, out of rows with rotated parts into such rows; and back to values."""
    queries_RAX, keys_RAD = (empty(ROWS, heads, width + ROTATED) for width in (UNROTATED, LATENT))
    key_up_ALN, value_up_AVL = empty(heads, LATENT, UNROTATED), empty(heads, VALUE, LATENT)
    attended_RAL, values_RAV = empty(ROWS, heads, LATENT), empty(ROWS, heads, VALUE)
    return lambda rows: (
        head_linear(queries_RAX[:rows, :, :UNROTATED], key_up_ALN, keys_RAD[:rows, :, :LATENT]),
        head_linear(attended_RAL[:rows], value_up_AVL, values_RAV[:rows]),
    )


# To the latent and back: two shapes of one kernel.
SPECS = [
    CompileSpec(
        f"products of {heads} heads, {name}",
        lambda heads=heads: _products(heads),
        {"_multiply": MULTIPLIES},
        sizes,
        variants=2,
    )
    for heads in (8, 64)
    for name, sizes in (("few rows", range(1, 17)), ("many", (17, 33, 128)))
]
