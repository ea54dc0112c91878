"""Decoder layers of every kind, natively as in the reference, and the law of a row's bits.

Legend: R rows, H hidden, T taps.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import tree
from kernels.decoder import DecoderStack, decode_layers
from kernels.quantized_linear import WEIGHT_FORMATS
from tests.kernels.implementations import (
    NATIVE,
    every_implementation,
    natively,
    running,
    use_threads,
)
from tests.kernels.test_attention import BUSH, parent_lists
from tests.kernels.tiny_decoder import (
    KINDS,
    PAGES,
    Inputs,
    Session,
    chain,
    empty_pages,
    in_float32,
    normal,
    random_stack,
)

every_kind = pytest.mark.parametrize("name", KINDS)
every_format = pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
seeds = st.integers(0, 2**32)


@cache
def stack_of(kernels, name, weight_format="dense"):
    return random_stack(KINDS[name], weight_format)


@cache
def stack_in_float32(name, weight_format):
    return in_float32(stack_of("reference", name, weight_format))


def new_session(kernels, name, weight_format="dense", first_position=0):
    return Session(KINDS[name], stack_of(kernels, name, weight_format), first_position)


def everything(session, rows, parents, taps):
    """Decode a text of 70 rows and a tree after it; return all that was computed."""
    text = session.read(rows[:70], [70], taps)
    nodes = session.look(rows[70:], parents, taps)
    session.length += len(parents)
    return {
        "h": torch.cat((text[0], nodes[0])),
        "taps": torch.cat((text[1], nodes[1])),
        **dict(zip(("keys", "values"), session.text(), strict=True)),
    }


def distance(x, exact):
    return float((x.double() - exact.double()).square().mean().sqrt())


def distances_from_float32(found, rows, parents, taps):
    """Return how far native results and those of the reference are from float32, part by part."""
    name, weight_format, native = found
    reference = everything(new_session("reference", name, weight_format, 37), rows, parents, taps)
    in_float32 = Session(KINDS[name], stack_in_float32(name, weight_format), 37)
    exact = everything(in_float32, rows.to(torch.float32), parents, taps)
    return {
        part: (distance(native[part], exact[part]), distance(reference[part], exact[part]))
        for part in exact
    }


@every_kind
@every_format
@pytest.mark.parametrize("kernels", NATIVE)
@pytest.mark.parametrize("parents", [chain(19), BUSH], ids=["chain", "tree"])
def test_native_results_are_no_farther_from_float32_than_those_of_the_reference(
    kernels, name, weight_format, parents
):
    """Natively fewer numbers are rounded to bfloat16, and none that the reference does not round.

    Which way a rounding errs is chance: of 1400 numbers or more, the mean square differs by 4 % at
    one standard deviation, its root by 2 %.
    """
    rows, taps = Inputs.random(KINDS[name], 70 + len(parents)), (KINDS[name].layers, 0)
    with running(kernels):
        native = everything(new_session(kernels, name, weight_format, 37), rows, parents, taps)
    found = distances_from_float32((name, weight_format, native), rows, parents, taps)
    assert {part: pair for part, pair in found.items() if pair[0] > 1.06 * pair[1]} == {}


WEIGHTS = ["input_norm_H", "post_norm_H", "q_norm_D", "k_norm_D"]


@pytest.mark.parametrize("kernels", NATIVE)
@pytest.mark.parametrize(("name", "weight"), [("qwen3", weight) for weight in WEIGHTS])
def test_a_norm_that_is_not_applied_would_be_told(kernels, name, weight):
    """Control: what is left out is far more than roundings."""
    rows, parents = Inputs.random(KINDS[name], 89), chain(19)
    with running(kernels):
        layers = stack_of(kernels, name).layers
        ones = torch.ones_like(getattr(layers[0], weight))
        other = [replace(layer, **{weight: ones}) for layer in layers]
        without = DecoderStack(other, stack_of(kernels, name).angles)
        native = everything(Session(KINDS[name], without, 37), rows, parents, ())
    h = distances_from_float32((name, "dense", native), rows, parents, ())["h"]
    assert h[0] > 2 * h[1]


@every_kind
@every_implementation
@pytest.mark.parametrize("taps", [(), (0,), (1, 0), (0, 1, 0)], ids=str)
def test_a_tap_is_what_the_layers_before_it_return(kernels, name, taps):
    kind, stack = KINDS[name], stack_of(kernels, name)
    taps, rows = (*taps, len(stack.layers)) if taps else (), Inputs.random(kind, 19)
    _, taps_RX = Session(kind, stack).look(rows, BUSH, taps)
    expected = [rows.h_RH[:, :0]]
    for depth in taps:
        first = DecoderStack(stack.layers[:depth], stack.angles) if depth else None
        session = Session(replace(kind, layers=depth), first) if first else None
        expected.append(session.look(rows, BUSH)[0] if session else rows.h_RH)
    assert torch.equal(taps_RX, torch.cat(expected, dim=-1))


@every_implementation
def test_only_angles_know_where_the_first_slot_lies(kernels):
    """Positions of the text enter by cos and sin alone: tables that begin later do the same."""
    kind, stack, rows = (
        KINDS["llama"],
        stack_of(kernels, "llama"),
        Inputs.random(KINDS["llama"], 70),
    )
    later = DecoderStack(stack.layers, [table_PD[37:].contiguous() for table_PD in stack.angles])
    h_RH, _ = Session(kind, stack, first_position=37).read(rows, [70])
    assert torch.equal(h_RH, Session(kind, later).read(rows, [70])[0])
    assert not torch.equal(h_RH, Session(kind, stack).read(rows, [70])[0])


@every_implementation
def test_a_layer_with_an_input_norm_needs_no_other_input(kernels):
    kind, rows = KINDS["llama"], Inputs.random(KINDS["llama"], 19)
    session = Session(kind, stack_of(kernels, "llama"))
    given = Inputs(rows.h_RH, normal(19, kind.hidden, seed=1))
    assert torch.equal(session.look(given, BUSH)[0], session.look(rows, BUSH)[0])


def assert_same(session, other, results, others):
    for mine, theirs in zip((*results, *session.text()), (*others, *other.text()), strict=True):
        assert torch.equal(mine, theirs)


@every_kind
@every_format
@natively
@settings(max_examples=6)
@given(length=st.integers(2, 150), data=st.data(), seed=seeds, threads=st.sampled_from([1, 2]))
def test_a_text_has_the_same_bits_cut_into_any_chunks(
    kernels, name, weight_format, length, data, seed, threads
):
    """Its cache too, in which all that comes will look."""
    rows, taps = Inputs.random(KINDS[name], length, seed), (0, KINDS[name].layers)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4)))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, length], strict=True)]
    one_by_one, in_chunks = (new_session(kernels, name, weight_format, 5) for _ in range(2))
    plain = one_by_one.read(rows, [1] * length, taps)
    use_threads(threads)
    chunks = in_chunks.read(rows, sizes, taps)
    use_threads(1)
    assert_same(one_by_one, in_chunks, plain, chunks)


@every_kind
@every_format
@natively
@settings(max_examples=10)
@given(
    prefix_len=st.sampled_from([1, 63, 64, 65, 130]),
    parents=parent_lists(max_nodes=40),
    data=st.data(),
    seed=seeds,
    threads=st.sampled_from([1, 2]),
)
def test_a_node_of_any_tree_has_the_bits_of_its_path_decoded_plainly(
    kernels, name, weight_format, prefix_len, parents, data, seed, threads
):
    rows, taps = Inputs.random(KINDS[name], prefix_len + len(parents), seed), (1,)
    past, nodes = rows[:prefix_len], rows[prefix_len:]
    path = list(tree.paths(parents)[data.draw(st.integers(0, len(parents) - 1))])
    session = new_session(kernels, name, weight_format)
    session.read(past, [prefix_len])
    use_threads(threads)
    in_tree = session.look(nodes, parents, taps)
    use_threads(1)
    plain = session.read(nodes[path], [1] * len(path), taps)
    for mine, theirs in zip(in_tree, plain, strict=True):
        assert torch.equal(mine[path], theirs)


@every_kind
@every_format
@natively
def test_two_threads_give_the_bits_of_one(kernels, name, weight_format):
    rows, results = Inputs.random(KINDS[name], 70 + len(BUSH)), []
    for threads in (1, 2):
        use_threads(threads)
        session = new_session(kernels, name, weight_format)
        results.append(everything(session, rows, BUSH, (0, 1)))
    use_threads(1)
    for part in results[0]:
        assert torch.equal(results[0][part], results[1][part])


@natively
def test_a_row_feels_its_past(kernels):
    """Control for the laws above: another first row, and all rows after it differ."""
    rows, other = (Inputs.random(KINDS["llama"], 70, seed=seed) for seed in (1, 2))
    other = Inputs(torch.cat((other.h_RH[:1], rows.h_RH[1:])), None)
    h_RH, other_RH = (new_session(kernels, "llama").read(r, [70])[0] for r in (rows, other))
    assert torch.all((h_RH != other_RH).any(-1))


@every_format
@natively
def test_rows_are_written_where_the_text_ends_and_nowhere_else(kernels, weight_format):
    session = new_session(kernels, "llama", weight_format)
    for part in session.kv:
        part.fill_(3.0)
    session.length = 58
    session.look(Inputs.random(KINDS["llama"], 6), chain(6))
    session.length = 320
    for part_LCSD in session.text():
        written_S = (part_LCSD != 3.0).any(-1).all(0).all(0)
        assert written_S.nonzero()[:, 0].tolist() == list(range(58, 64))
        assert torch.all(part_LCSD[:, :, ~written_S] == 3.0)
    for part in session.kv:
        assert torch.all(part[PAGES[1]] == 3.0)


@every_implementation
def test_what_another_session_left_in_a_page_is_not_felt(kernels):
    """Not even if it is not a number: whoever begins a page empties it."""
    rows = Inputs.random(KINDS["llama"], 130)
    clean, soiled = (new_session(kernels, "llama") for _ in range(2))
    for part in soiled.kv:
        part.fill_(torch.nan)
    results = [session.read(rows, [61, 7, 62], (0, 1)) for session in (clean, soiled)]
    assert_same(clean, soiled, *results)


@every_kind
@every_format
@natively
@settings(max_examples=10)
@given(
    lengths=st.tuples(st.integers(0, 130), st.integers(0, 130)),
    trees=st.tuples(parent_lists(max_nodes=20), parent_lists(max_nodes=20)),
    seed=seeds,
    threads=st.sampled_from([1, 2]),
)
def test_a_session_does_not_feel_another_in_its_batch(
    kernels, name, weight_format, lengths, trees, seed, threads
):
    kind, stack = KINDS[name], stack_of(kernels, name, weight_format)
    kv, alone, together = empty_pages(kind, stack), [], []
    for place, (length, parents) in enumerate(zip(lengths, trees, strict=True)):
        rows = Inputs.random(kind, length + len(parents), seed + place)
        one, other = (Session(kind, stack, place, kv=pages, place=place) for pages in (None, kv))
        for session in (one, other):
            if length:
                session.read(rows[:length], [length])
        alone.append(one.look(rows[length:], parents, (0, 1)))
        together.append((rows[length:], other.layout(parents)))
    rows = Inputs.joined([rows for rows, _ in together])
    use_threads(threads)
    batch = decode_layers(
        rows.h_RH, stack, [layout for _, layout in together], kv, (0, 1), rows.x_RX
    )
    use_threads(1)
    for mine, theirs in zip(batch, zip(*alone, strict=True), strict=True):
        assert torch.equal(mine, torch.cat(theirs))
