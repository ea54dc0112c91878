"""What a GPU cannot serve is refused with the reason."""

import pytest
import torch

from target_service.config import TargetConfig
from target_service.device import check_settings

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "dtype", "reason"),
    [
        ({"weights": "int8"}, BF16, "weights is 'int8'.*--weights bf16"),
        ({"weights": "int4"}, BF16, "weights is 'int4'"),
        ({}, torch.float32, "the model is float32.*--weights bf16 converts it"),
        ({"kernels": "native"}, BF16, "kernels is 'native', which are for CPUs"),
        ({"kernels": "reference"}, BF16, "kernels is 'reference'"),
        ({"allow_forced_acceptance": True}, BF16, "allow_forced_acceptance is set"),
    ],
)
def test_what_a_gpu_cannot_serve_is_refused_with_the_reason(tiny_dir, settings, dtype, reason):
    with pytest.raises(ValueError, match=f"on a GPU {reason}.*--device cpu"):
        check_settings(TargetConfig(model=tiny_dir, **settings), dtype)


def test_a_dense_bfloat16_model_is_served(tiny_dir):
    check_settings(TargetConfig(model=tiny_dir, weights="bf16"), BF16)
