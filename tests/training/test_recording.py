"""Recordings: whole shards only, nothing twice, nothing lost, nothing mixed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.made_samples import made_sample, record_samples, same, source_of
from training import recording as recording_module
from training.recording import DiskFullError, Recording, read_shards
from training.sample import Facts


def samples_in(directory):
    return [
        shard.sample(number)
        for shard in read_shards(directory)
        for number in range(len(shard.facts))
    ]


@settings(max_examples=10)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6))
def test_what_was_added_is_read_bit_for_bit(tmp_path_factory, lengths):
    added = [made_sample(f"s{n}", length, 1, seed=n) for n, length in enumerate(lengths)]
    directory = record_samples(tmp_path_factory.mktemp("r"), added)
    assert all(same(one, two) for one, two in zip(added, samples_in(directory), strict=True))


def test_shards_end_when_they_are_large_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(recording_module, "_SHARD_BYTES", 500)
    directory = record_samples(tmp_path, [made_sample(f"s{n}", 12, seed=n) for n in range(5)])
    assert [len(shard.facts) for shard in read_shards(directory)] == [2, 2, 1]


def test_a_killed_recording_goes_on_without_loss_or_duplicates(tmp_path, monkeypatch):
    """What was flushed is known by its ids; a file that was not finished is dropped."""
    monkeypatch.setattr(recording_module, "_SHARD_BYTES", 500)
    killed = Recording(tmp_path, source_of(), 2**30)
    for number in range(3):
        killed.add(made_sample(f"s{number}", 12, seed=number))
    del killed
    (tmp_path / "shard-00001.tmp").write_bytes(b"half a shard")
    again = Recording(tmp_path, source_of(), 2**30)
    assert again.sample_ids == {"s0", "s1"}
    for number in range(2, 4):
        again.add(made_sample(f"s{number}", 12, seed=number))
    again.flush()
    assert [sample.facts.sample_id for sample in samples_in(tmp_path)] == ["s0", "s1", "s2", "s3"]
    assert not list(tmp_path.glob("*.tmp"))


def test_the_manifest_counts_what_the_shards_hold(tmp_path):
    record_samples(
        tmp_path, [made_sample("a", 12, 4), made_sample("b", 9, 4, task="code", temperature=0.7)]
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["tokens"], manifest["answered_tokens"]) == (21, 13)
    assert manifest["samples_by_task"] == {"chat": 1, "code": 1}
    assert manifest["samples_by_temperature"] == {"0.0": 1, "0.7": 1}


def test_another_target_is_refused(tmp_path):
    record_samples(tmp_path, [made_sample()])
    with pytest.raises(ValueError, match=r"tap_layers \(1, 2, 4\), not \(0, 2, 4\)"):
        Recording(tmp_path, source_of(tap_layers=(0, 2, 4)), 2**30)


def test_a_full_budget_keeps_what_there_is(tmp_path):
    record_samples(tmp_path, [made_sample("a")])
    small = Recording(tmp_path, source_of(), max_bytes=1000)
    small.add(made_sample("b"))
    with pytest.raises(DiskFullError, match="may take 1000 bytes"):
        small.flush()
    assert [sample.facts.sample_id for sample in samples_in(tmp_path)] == ["a"]


def test_two_recorders_do_not_write_to_one_directory(tmp_path):
    """One would write over the other's shards."""
    first = Recording(tmp_path, source_of(), 2**30)
    with pytest.raises(ValueError, match="another recorder writes to"):
        Recording(tmp_path, source_of(), 2**30)
    del first
    Recording(tmp_path, source_of(), 2**30)


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"has 'thesis\.tex' in it"):
        Recording(tmp_path, source_of(), 2**30)
    with pytest.raises(ValueError, match="is a file"):
        Recording(tmp_path / "thesis.tex", source_of(), 2**30)


def test_what_has_no_room_to_begin_with_is_not_begun(tmp_path):
    with pytest.raises(DiskFullError, match="may take 0 bytes"):
        Recording(tmp_path, source_of(), 0)


def test_an_unknown_encoding_is_refused_before_anything_is_recorded():
    with pytest.raises(ValueError, match="got 'fp4'"):
        source_of(taps="fp4")


def test_a_torn_shard_is_named(tmp_path):
    record_samples(tmp_path, [made_sample()])
    path = tmp_path / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"shard-00000\.safetensors is not a whole shard"):
        read_shards(tmp_path)


def test_a_directory_without_shards_is_no_recording(tmp_path):
    with pytest.raises(ValueError, match="is no recording"):
        read_shards(tmp_path)


def test_rows_and_tokens_that_do_not_belong_together_are_refused():
    sample = made_sample("a")
    with pytest.raises(ValueError, match="has 12 tokens and 10 rows"):
        type(sample)(sample.facts, sample.tokens_N, sample.taps_TX[1:])


def test_one_of_twenty_is_held_out_whatever_else_is_known_of_it():
    facts = [Facts(f"id-{n}", "chat", (), 0.0, 1.0, 0) for n in range(4000)]
    other = [Facts(f"id-{n}", "code", ((1, 2),), 0.7, 0.9, 5) for n in range(4000)]
    held_out = [one.held_out for one in facts]
    assert held_out == [one.held_out for one in other]
    assert 140 <= sum(held_out) <= 260
