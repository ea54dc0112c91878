"""Steps with and without taps are the same steps: only their time is compared."""

import torch

from benchmarks.unused_taps import measure
from target_service.models import build_model, model_config
from target_service.weights import Weights, read_config
from tests.tiny_llama import write_tiny_llama


def test_pairs_of_steps_give_a_ratio_with_its_interval(tmp_path):
    path = write_tiny_llama(tmp_path, layers=3)
    model = build_model(model_config(read_config(path)), Weights(path), 512)

    with torch.inference_mode():
        found = measure(model, (0, 1), sessions=2, pairs=6)

    low, high = found["tapped_over_untapped_ci95"]
    assert 0 < low <= found["tapped_over_untapped"] <= high
    assert (found["sessions"], found["pairs"]) == (2, 6)
