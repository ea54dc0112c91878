"""Output ends at the first stop string, however the text was cut into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopScan, StopStrings

# Two letters make overlaps, borders and near misses frequent.
texts = st.text("ab", max_size=40)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def split_whole(text, stops, include):
    """The law on the whole text: the first end of any stop string, the longest one there."""
    for end in range(len(text) + 1):
        matched = max((s for s in stops if text[:end].endswith(s)), key=len, default=None)
        if matched is not None:
            return text[:end] if include else text[: end - len(matched)], matched
    return text, None


def chunked(text, sizes):
    """`text` in chunks of the given sizes (0 allowed), then the rest."""
    for size in sizes:
        yield text[:size]
        text = text[size:]
    yield text


def scan(chunks, stops, include):
    scanner, emitted = StopStrings(stops, include=include), ""
    for chunk in chunks:
        result = scanner.push(chunk)
        emitted += result.emit
        if result.matched is not None:
            return emitted + scanner.flush(), result.matched
    return emitted + scanner.flush(), None


@given(texts, stops, st.lists(st.integers(0, 6)), st.booleans())
def test_any_chunking_equals_the_split_of_the_whole_text(text, stops, sizes, include):
    assert scan(chunked(text, sizes), stops, include) == split_whole(text, stops, include)


@given(texts, stops, st.permutations(range(4)), st.booleans())
def test_the_order_of_the_stop_strings_does_not_matter(text, stops, order, include):
    shuffled = [stops[i] for i in order if i < len(stops)]

    assert scan([text], shuffled, include) == scan([text], stops, include)


@given(texts, stops)
def test_only_a_possible_beginning_is_held_back(text, stops):
    """What is held is the longest end of the text that begins a stop string, and no more."""
    scanner = StopStrings(stops)
    result = scanner.push(text)
    if result.matched is None:
        begins = [n for s in stops for n in range(len(s)) if text.endswith(s[:n])]
        held = max(begins, default=0)

        assert result.emit == text[: len(text) - held]


def test_the_match_is_reported_with_the_chunk_that_completes_it():
    """Pushing token by token tells which token ended the output."""
    scanner = StopStrings(["END"])

    assert scanner.push("one E") == StopScan("one ", None)
    assert scanner.push("N") == StopScan("", None)
    assert scanner.push("D and more") == StopScan("", "END")


def test_a_false_start_is_released():
    scanner = StopStrings(["</s>"])

    assert scanner.push("1 </") == StopScan("1 ", None)
    assert scanner.push("b>") == StopScan("</b>", None)


def test_a_short_stop_string_that_completes_first_wins_over_one_that_begins_first():
    assert StopStrings(["abcd", "bc"]).push("xabcd") == StopScan("xa", "bc")


@pytest.mark.parametrize("stop", ["aab", "abaababb", "aaaab"])
def test_a_stop_string_that_overlaps_itself_is_found(stop):
    """A match that fails half-way may already hold the beginning of the next."""
    for repeated in (stop[:n] + stop for n in range(len(stop))):
        assert scan(repeated, [stop], False) == split_whole(repeated, [stop], False)


def test_the_longest_wins_where_two_complete_together():
    assert StopStrings(["c", "bc"]).push("abc") == StopScan("a", "bc")


def test_included_text_is_never_held_back():
    scanner = StopStrings(["END"], include=True)

    assert scanner.push("one E") == StopScan("one E", None)
    assert scanner.push("ND more") == StopScan("ND", "END")


def test_without_stop_strings_everything_passes():
    assert StopStrings([]).push("anything") == StopScan("anything", None)


def test_an_empty_stop_string_is_a_value_error():
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["ok", ""])
