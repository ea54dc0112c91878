"""A field of a config holds what its kind says, or is named with what it holds."""

import pytest

from protos.config_fields import COUNTS, FLAG, LAYER_FIELDS, check_fields, stated

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": True,
}


def test_what_holds_is_let_through_and_null_is_as_good_as_missing():
    check_fields(GOOD, LAYER_FIELDS)
    check_fields(dict.fromkeys(LAYER_FIELDS), LAYER_FIELDS)
    assert stated({"a": None, "b": 0, "c": False}) == {"b": 0, "c": False}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("architectures", 5, "a list of names, got 5"),
        ("architectures", ["a", 5], "a list of names"),
        ("hidden_size", "a", "an integer of at least 1, got 'a'"),
        ("hidden_size", 0, "an integer of at least 1, got 0"),
        ("hidden_size", True, "an integer of at least 1, got True"),
        ("hidden_size", 64.5, "an integer of at least 1"),
        ("rms_norm_eps", "x", "a number above 0, got 'x'"),
        ("rms_norm_eps", 0, "a number above 0, got 0"),
        ("rope_theta", float("inf"), "a number above 0, got inf"),
        ("rope_scaling", [], r"an object, got \[\]"),
        ("tie_word_embeddings", "yes", "true or false, got 'yes'"),
    ],
)
def test_what_does_not_is_named_with_its_value(name, value, said):
    with pytest.raises(ValueError, match=f"{name} must be {said}"):
        check_fields(GOOD | {name: value}, LAYER_FIELDS)


def test_a_long_value_is_not_repeated_whole():
    with pytest.raises(ValueError, match="flag must be true or false") as refused:
        check_fields({"flag": "x" * 10_000}, {"flag": FLAG})
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("ids", [5, ["a", 1], [1.0], [-1], [True]])
def test_ids_are_whole_numbers(ids):
    with pytest.raises(ValueError, match="ids must be a list of integers"):
        check_fields({"ids": ids}, {"ids": COUNTS})
