"""Where drafters run is said, or found; a device that is not there is an error that says so."""

import pytest
import torch

from draft_service.config import DraftConfig
from draft_service.placement import ON_CPU, Placement


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_auto_is_the_cpu():
    found = Placement.parse("auto", graphs=True)
    assert (found.device, found.is_gpu) == (torch.device("cpu"), False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("graphs", [True, False])
def test_with_a_gpu_auto_is_the_first_for_drafters_that_it_runs(graphs):
    expected = Placement(torch.device("cuda", 0), graphs, may_fall_back=True)
    assert Placement.parse("auto", graphs=graphs) == expected


@pytest.mark.usefixtures("two_gpus")
def test_what_is_named_is_taken_and_nothing_else():
    assert Placement.parse("cpu", graphs=True) == ON_CPU
    for text, index in (("cuda", 0), ("cuda:1", 1)):
        assert Placement.parse(text, graphs=False) == Placement(torch.device("cuda", index), False)


@pytest.mark.usefixtures("no_gpu")
def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="device is 'cuda', but torch finds 0 CUDA devices"):
        Placement.parse("cuda", graphs=True)


def test_device_and_graphs_are_flags():
    config = DraftConfig(_cli_parse_args=["--device", "cuda:1", "--no-graphs"])
    assert (config.device, config.graphs) == ("cuda:1", False)
    assert (DraftConfig(_cli_parse_args=[]).device, DraftConfig(_cli_parse_args=[]).graphs) == (
        "cpu",
        True,
    )
