"""Weights are read from safetensors only, whatever their exporter called them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from draft_service.weights import (
    Weights,
    drafter_tensor_name,
    open_drafter,
    read_config,
    target_embedding,
    target_head,
)
from tests.draft_service.drafters.played_session import write_target


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("fc.weight", "fc.weight"),
        ("model.fc.weight", "fc.weight"),
        ("midlayer.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ("layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ("model.layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"),
        ("layers.1.hidden_norm.weight", "layers.1.hidden_norm.weight"),
        ("aux_norm_low.weight", "fc_norm.0.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("model.aux_norm_high.weight", "fc_norm.2.weight"),
        ("d2t", "d2t"),
    ],
)
def test_every_exporters_name_is_brought_to_one_form(stored, name):
    assert drafter_tensor_name(stored) == name


def test_tensors_of_all_shards_are_found(tmp_path):
    save_file({"model.fc.weight": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"norm.weight": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")

    weights = open_drafter(tmp_path)

    assert set(weights) == {"fc.weight", "norm.weight"}
    assert torch.equal(weights["fc.weight"], torch.ones(2))
    assert torch.equal(weights["norm.weight"], torch.zeros(3))


def test_one_tensor_under_two_names_is_refused(tmp_path):
    tensors = {"layers.0.norm": torch.ones(1), "midlayer.norm": torch.zeros(1)}
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(ValueError, match=r"'midlayer\.norm' twice: .*'layers\.0\.norm'"):
        open_drafter(tmp_path)


def test_a_missing_tensor_is_named(tmp_path):
    save_file({"norm.weight": torch.ones(1)}, tmp_path / "model.safetensors")

    with pytest.raises(ValueError, match=r"no tensor 'fc\.weight'"):
        Weights(tmp_path)["fc.weight"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_refused_with_the_way_to_convert_them(tmp_path, name):
    (tmp_path / name).write_bytes(b"anything")

    with pytest.raises(ValueError, match=rf"{name} is not read: only \*\.safetensors.*save_file"):
        Weights(tmp_path)


def test_a_pickle_beside_safetensors_does_not_matter(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    save_file({"norm.weight": torch.ones(1)}, tmp_path / "model.safetensors")

    assert "norm.weight" in Weights(tmp_path)


def test_a_directory_without_weights_or_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no \*\.safetensors"):
        Weights(tmp_path)
    with pytest.raises(ValueError, match=r"has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"architectures": 5}, "architectures must be a list of names, got 5"),
        ({"eagle_config": 7}, "eagle_config must be an object, got 7"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a", 1]}},
            "eagle_aux_hidden_state_layer_ids must be a list of integers",
        ),
    ],
)
def test_a_field_that_holds_something_else_is_named(tmp_path, field, message):
    (tmp_path / "config.json").write_text(json.dumps(field))
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")

    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        Weights(tmp_path)


@pytest.mark.parametrize("prefix", ["", "language_model."])
@pytest.mark.parametrize("tied", [False, True])
def test_the_targets_embedding_and_head_are_found(tmp_path, prefix, tied):
    """Under a vision model's prefix too, and in the embedding if the head is tied to it."""
    shared = write_target(tmp_path / "target", tied=tied, prefix=prefix)

    assert torch.equal(target_embedding(tmp_path / "target"), shared["embed"])
    assert torch.equal(target_head(tmp_path / "target"), shared["head"])


def test_an_untied_target_without_its_head_is_refused(tmp_path):
    """Half a download would otherwise lend its embedding as a head."""
    write_target(tmp_path / "target", tied=True)
    (tmp_path / "target" / "config.json").write_text("{}")

    with pytest.raises(ValueError, match=r"no tensor 'lm_head\.weight'"):
        target_head(tmp_path / "target")
