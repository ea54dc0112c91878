"""Weights are views of their files, of any number of shards; what cannot be read is named."""

import json

import pytest
import torch
from safetensors.torch import save_file

from target_service.models import build_model, model_config
from target_service.weights import Weights, parse_dtype, read_config
from tests.tiny_llama import write_tiny_llama

NAME = "model.embed_tokens.weight"


def mapped_file(address: int) -> str:
    """Return the file mapped into this process at an address, as Linux tells it."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            region, *_, file = line.rstrip("\n").split(maxsplit=5)
            first, last = (int(end, 16) for end in region.split("-"))
            if first <= address < last:
                return file
    return ""


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_tensor_is_a_view_of_its_file(tmp_path, dtype):
    """No copy: a model larger than memory can be opened, and two services share its pages."""
    weights = Weights(write_tiny_llama(tmp_path), dtype)
    assert mapped_file(weights[NAME].data_ptr()) == str(tmp_path / "model.safetensors")


def test_a_converted_tensor_is_a_copy(tmp_path):
    tensor = Weights(write_tiny_llama(tmp_path), torch.bfloat16)[NAME]
    assert tensor.dtype == torch.bfloat16
    assert mapped_file(tensor.data_ptr()) != str(tmp_path / "model.safetensors")


def test_the_model_itself_copies_no_matrix(tmp_path):
    path = write_tiny_llama(tmp_path)
    model = build_model(model_config(read_config(path)), Weights(path), 64)
    matrices = [
        model.embedding_VH,
        model.head.linear.weight_NK,
        model.stack.layers[0].up.weight_NK,
    ]
    assert {mapped_file(m.data_ptr()) for m in matrices} == {str(path / "model.safetensors")}


def test_shards_are_one_set_of_names(tmp_path):
    whole = Weights(write_tiny_llama(tmp_path / "whole"))
    shards = Weights(write_tiny_llama(tmp_path / "shards", shards=4))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 4
    assert set(whole) == set(shards)
    assert all(torch.equal(whole[name], shards[name]) for name in whole)


def test_a_tensor_may_be_absent(tmp_path):
    weights = Weights(write_tiny_llama(tmp_path))
    assert NAME in weights
    assert "no.such" not in weights
    assert weights.get("no.such") is None


class TestRefusals:
    def test_a_missing_tensor(self, tmp_path):
        path = write_tiny_llama(tmp_path, without=["model.layers.1.mlp.up_proj.weight"])
        with pytest.raises(ValueError, match=r"no tensor 'model.layers.1.mlp.up_proj.weight'"):
            build_model(model_config(read_config(path)), Weights(path), 64)

    def test_a_missing_head_of_an_untied_model(self, tmp_path):
        """Half a download must not be served with the embedding for a head."""
        path = write_tiny_llama(tmp_path, without=["lm_head.weight"])
        with pytest.raises(ValueError, match=r"no tensor 'lm_head.weight'"):
            build_model(model_config(read_config(path)), Weights(path), 64)

    def test_a_missing_shard(self, tmp_path):
        path = write_tiny_llama(tmp_path, shards=3)
        (path / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(ValueError, match="no tensor"):
            build_model(model_config(read_config(path)), Weights(path), 64)

    def test_pickles(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
        with pytest.raises(ValueError, match=r"has no \*.safetensors .*can run code"):
            Weights(tmp_path)

    @pytest.mark.parametrize("size", [0, 4, 100, -1])
    def test_half_a_file(self, tmp_path, size):
        file = write_tiny_llama(tmp_path) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
            Weights(tmp_path)

    @pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
    def test_numbers_that_need_a_scale(self, tmp_path, stored):
        """Converted without their scales they would be a model that talks nonsense."""
        save_file({"a": torch.ones(4).to(stored)}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"'a' has dtype {stored}; known: float32"):
            Weights(tmp_path, torch.bfloat16)["a"]

    @pytest.mark.parametrize("name", ["int8", "bf16", "", "torch.float32"])
    def test_a_dtype_that_is_not_known(self, name):
        with pytest.raises(ValueError, match=f"float32, bfloat16, float16, got '{name}'"):
            parse_dtype(name)

    def test_a_directory_without_config(self, tmp_path):
        with pytest.raises(ValueError, match=f"{tmp_path} is not a model directory"):
            read_config(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
    def test_a_config_that_is_not_json(self, tmp_path, content):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"config.json is not JSON"):
            read_config(tmp_path)


def test_the_names_of_dtypes():
    assert parse_dtype("bfloat16") is torch.bfloat16


def test_a_config_is_read_as_it_is(tmp_path):
    write_tiny_llama(tmp_path, hidden=32, vocab=99)
    assert read_config(tmp_path) == json.loads((tmp_path / "config.json").read_text())
