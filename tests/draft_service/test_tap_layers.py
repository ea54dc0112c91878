"""All conventions for tap layers lead to input-of-layer ids."""

import pytest

from draft_service.tap_layers import (
    input_of_layer_ids,
    output_of_layer_ids,
    stated_layers,
)

KIMI_LAYERS = 61


def nested(*ids):
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


def top_level(*ids):
    return {"eagle_aux_hidden_state_layer_ids": list(ids)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (2, 30, 58)),
        ({"eagle_config": None}, (2, 30, 58)),
        (nested(), (2, 30, 58)),
        (nested(1, 29, 57), (2, 30, 58)),
        (nested(2, 30, 58), (2, 30, 58)),
        (top_level(2, 30, 58), (2, 30, 58)),
        (top_level(1, 29, 57), (1, 29, 57)),
        (top_level(3, 31, 61) | nested(1, 29, 57), (3, 31, 61)),
    ],
)
def test_every_convention_names_the_inputs_of_layers(config, expected):
    """Output-of [1, 29, 57] is input-of [2, 30, 58]; ids at the top level are taken as they are."""
    assert input_of_layer_ids(config, KIMI_LAYERS) == expected


def test_an_override_is_taken_as_it_is_before_all_else():
    config = top_level(2, 30, 58) | nested(2, 30, 58)

    assert input_of_layer_ids(config, KIMI_LAYERS, [1, 29, 57]) == (1, 29, 57)


@pytest.mark.parametrize(("num_layers", "expected"), [(32, (2, 16, 29)), (61, (2, 30, 58))])
def test_the_default_depends_on_the_depth_of_the_target(num_layers, expected):
    assert input_of_layer_ids({}, num_layers) == expected


def test_the_number_of_layers_stands_for_the_last_output():
    assert input_of_layer_ids(nested(1, 29, 60), KIMI_LAYERS) == (2, 30, 61)


@pytest.mark.parametrize(
    "config",
    [top_level(2, 30, 62), top_level(-1, 30), top_level(30, 2, 58), nested(1, 1), nested(1, 61)],
)
def test_ids_that_do_not_ascend_within_the_target_are_refused(config):
    with pytest.raises(ValueError, match=r"ascend within \[0, 61\] \(input-of-layer\), got \["):
        input_of_layer_ids(config, KIMI_LAYERS)


def test_a_target_too_shallow_for_the_default_is_refused():
    with pytest.raises(ValueError, match=r"within \[0, 4\].*got \[2, 2, 1\]"):
        input_of_layer_ids({}, 4)


@pytest.mark.parametrize(
    ("config", "override", "expected"),
    [
        (top_level(2, 30, 58), None, ((2, 30, 58), "top level", (2, 30, 58))),
        (nested(1, 29, 57), None, ((2, 30, 58), "eagle_config", (1, 29, 57))),
        (nested(2, 30, 58), None, ((2, 30, 58), "eagle_config", (2, 30, 58))),
        (top_level(2, 30, 58), [3, 4], ((3, 4), "override", (3, 4))),
        ({}, None, None),
    ],
)
def test_where_layers_were_stated_and_how_is_told(config, override, expected):
    assert stated_layers(config, override) == expected


def test_ids_written_for_other_engines_are_read_as_the_same_layers():
    """Or not written: SGLang reads ids that do not begin with 1 in one way or in another."""
    written = output_of_layer_ids((2, 30, 58))

    assert written == (1, 29, 57)
    assert input_of_layer_ids(nested(*written), KIMI_LAYERS) == (2, 30, 58)
    assert output_of_layer_ids((3, 30, 58)) is None
    assert output_of_layer_ids((1, 30, 58)) is None
