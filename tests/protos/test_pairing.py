"""Two services that do not fit are told apart, field by field, with both values."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import speculation_pb2 as pb
from protos.pairing import PROTOCOL_VERSION, Pairing, fingerprint, tokenizer_digest

U32 = st.integers(0, 2**32 - 1)
TARGET = Pairing(
    hidden_size=576,
    vocab_size=49152,
    tap_layers=(2, 15, 27),
    tap_dtype=pb.DTYPE_BF16,
    target_fingerprint="f00d",
    tokenizer_digest="cafe",
)


@given(
    st.builds(
        Pairing,
        U32,
        U32,
        st.lists(U32, max_size=5).map(tuple),
        st.sampled_from([pb.DTYPE_F32, pb.DTYPE_BF16, pb.DTYPE_F16]),
        st.text(max_size=8),
        st.text(max_size=8),
        U32,
    )
)
def test_a_pairing_comes_back_from_the_wire_as_it_was(pairing):
    arrived = pb.Pairing.FromString(pairing.to_proto().SerializeToString())

    assert Pairing.from_proto(arrived) == pairing


def test_a_pairing_fits_itself():
    assert TARGET.mismatches(TARGET) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol_version", PROTOCOL_VERSION + 1),
        ("hidden_size", 577),
        ("vocab_size", 49153),
        ("tap_dtype", pb.DTYPE_F16),
        ("target_fingerprint", "beef"),
        ("tokenizer_digest", "d1ce"),
    ],
)
def test_a_mismatch_names_the_field_and_both_values(name, value):
    drafter = replace(TARGET, **{name: value})

    (mismatch,) = drafter.mismatches(TARGET)

    theirs = getattr(TARGET, name)
    assert mismatch == f"{name}: the drafter has {value!r}, the target has {theirs!r}"


def test_layers_that_are_not_tapped_are_named_with_those_that_are():
    drafter = replace(TARGET, tap_layers=(1, 15, 28))

    (mismatch,) = drafter.mismatches(TARGET)

    for part in ("[1, 15, 28]", "[2, 15, 27]", "input-of-layer", "missing [1, 28]"):
        assert part in mismatch


def test_all_mismatches_are_named_at_once():
    drafter = replace(TARGET, hidden_size=1, vocab_size=2, tap_layers=(3,))

    names = [mismatch.partition(":")[0] for mismatch in drafter.mismatches(TARGET)]

    assert names == ["vocab_size", "hidden_size", "tap_layers"]


@pytest.mark.parametrize("layers", [(2,), (27, 2), (15, 15)])
def test_a_drafter_may_choose_among_the_tapped_layers(layers):
    assert replace(TARGET, tap_layers=layers).mismatches(TARGET) == []


@pytest.mark.parametrize("name", ["target_fingerprint", "tokenizer_digest"])
def test_a_digest_that_one_side_does_not_know_fits(name):
    unknown = replace(TARGET, **{name: ""})

    assert unknown.mismatches(TARGET) == []
    assert TARGET.mismatches(unknown) == []


def test_who_reads_no_hidden_states_need_not_fit_them():
    follower = replace(TARGET, hidden_size=0, tap_dtype=pb.DTYPE_F32, tap_layers=())

    assert follower.mismatches(TARGET) == []
    assert replace(follower, vocab_size=5).mismatches(TARGET) != []


CONFIG = {"hidden_size": 8, "rope": {"theta": 1e4}}
SAMPLED_WHOLE = 64 * 4096


@pytest.fixture
def model(tmp_path):
    """A model directory with a small and a large file of weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "a.safetensors").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "b.safetensors").write_bytes(bytes(3 * SAMPLED_WHOLE))
    return tmp_path


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_the_same_directory_has_the_same_fingerprint(model):
    """So has one whose configuration is written in another order, beside other files."""
    before = fingerprint(model)
    (model / "config.json").write_text(json.dumps(dict(reversed(CONFIG.items())), indent=2))
    (model / "README.md").write_text("anything")

    assert fingerprint(model) == before


def test_another_configuration_has_another_fingerprint(model):
    before = fingerprint(model)
    (model / "config.json").write_text(json.dumps(CONFIG | {"rope": {"theta": 1e5}}))

    assert fingerprint(model) != before


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000, 10239])
def test_every_byte_of_a_small_file_counts(model, offset):
    before = fingerprint(model)
    flip(model / "a.safetensors", offset)

    assert fingerprint(model) != before


@pytest.mark.parametrize("sample", [0, 1, 31, 63])
def test_samples_of_a_large_file_are_spread_over_all_of_it(model, sample):
    """64 pieces at even distances, the first of which is the header."""
    before = fingerprint(model)
    flip(model / "b.safetensors", sample * 3 * SAMPLED_WHOLE // 64 + 4095)

    assert fingerprint(model) != before


@pytest.mark.parametrize("change", [-1, 1, 64, -3 * SAMPLED_WHOLE])
def test_another_size_is_another_fingerprint(model, change):
    """Even if all samples look the same."""
    before = fingerprint(model)
    (model / "b.safetensors").write_bytes(bytes(3 * SAMPLED_WHOLE + change))

    assert fingerprint(model) != before


def test_the_names_of_the_files_count(model):
    before = fingerprint(model)
    (model / "b.safetensors").rename(model / "c.safetensors")

    assert fingerprint(model) != before


def test_a_checkpoint_of_terabytes_is_read_in_pieces(tmp_path):
    """It would not fit the memory, and nobody waits for it."""
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2**42)

    assert len(fingerprint(tmp_path)) == 32


def test_a_tokenizer_is_known_by_its_bytes(tmp_path):
    assert tokenizer_digest(tmp_path) == ""

    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    # From `printf {} | sha256sum`.
    expected = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert tokenizer_digest(tmp_path) == expected
