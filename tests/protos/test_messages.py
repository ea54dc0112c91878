"""Values of the wire survive it unchanged, and nonsense is refused with its value and its limit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import speculation_pb2 as pb
from protos.messages import (
    MAX_TREE_NODES,
    DraftTimings,
    DraftTree,
    Plan,
    SamplingParams,
    TopLogprobs,
    Verdict,
    VerifyTimings,
    check_id,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
LOGPROBS = st.floats(max_value=0, width=32, allow_nan=False)


def within(low, high, **rest):
    """Floats that the wire's 32 bits hold exactly."""
    return st.floats(low, high, width=32, **rest)


def equally_long(size):
    return st.lists(LOGPROBS, min_size=size, max_size=size).map(tuple)


DRAFT_TIMINGS = st.builds(DraftTimings, U64, U64, U64)
VERIFY_TIMINGS = st.builds(VerifyTimings, U64, U64, U64, U32)
TOP_LOGPROBS = st.builds(
    TopLogprobs, st.lists(U32).map(tuple), st.lists(LOGPROBS, max_size=20).map(tuple)
)


@st.composite
def trees(draw):
    size = draw(st.integers(1, MAX_TREE_NODES))
    parents = [draw(st.integers(0, node - 1)) for node in range(1, size)]
    return DraftTree(
        draw(U64),
        tuple(draw(st.lists(U32, min_size=size, max_size=size))),
        (-1, *parents),
        draw(st.just(()) | equally_long(size)),
        draw(st.text(max_size=8)),
        draw(DRAFT_TIMINGS),
    )


@st.composite
def verdicts(draw):
    path = draw(st.lists(U32, max_size=MAX_TREE_NODES).map(tuple))
    tokens = draw(st.lists(U32, min_size=len(path) + 1, max_size=len(path) + 1).map(tuple))
    tops = draw(st.lists(TOP_LOGPROBS, max_size=2).map(tuple))
    return Verdict(
        draw(U64), path, tokens, draw(equally_long(len(tokens))), tops, draw(VERIFY_TIMINGS)
    )


PLANS = st.builds(Plan, st.integers(0, 63), st.integers(1, 63), st.integers(1, 64))
SAMPLING_PARAMS = st.builds(
    SamplingParams,
    temperature=within(0, 100),
    top_k=st.integers(-1, 2**31 - 1),
    top_p=within(0, 1, exclude_min=True),
    min_p=within(0, 1),
    seed=U64,
    presence_penalty=within(-2, 2),
    frequency_penalty=within(-2, 2),
    repetition_penalty=within(0, 10, exclude_min=True),
    logit_bias=st.dictionaries(U32, within(-100, 100), max_size=8),
    suppressed_token_ids=st.lists(U32).map(tuple),
    min_new_tokens=U32,
    top_logprobs=st.none() | st.integers(0, 20),
)


@given(
    st.one_of(
        DRAFT_TIMINGS, VERIFY_TIMINGS, TOP_LOGPROBS, trees(), verdicts(), PLANS, SAMPLING_PARAMS
    )
)
def test_every_value_comes_back_from_the_wire_as_it_was(value):
    message = value.to_proto()

    arrived = type(message).FromString(message.SerializeToString())

    assert type(value).from_proto(arrived) == value


def test_sampling_that_says_nothing_means_the_defaults():
    assert SamplingParams.from_proto(pb.SamplingParams()) == SamplingParams()


@pytest.mark.parametrize("name", ["temperature", "seed", "top_k", "top_logprobs"])
def test_a_zero_is_a_zero_and_not_a_default(name):
    message = pb.SamplingParams(**{name: 0})

    assert getattr(SamplingParams.from_proto(message), name) == 0


def test_a_plan_that_gives_no_shape_is_a_chain_as_long_as_its_steps():
    assert Plan.from_proto(pb.Plan(steps=5)) == Plan(5, top_k=1, draft_tokens=MAX_TREE_NODES)


def test_plain_decoding_is_a_tree_of_its_root():
    tree = DraftTree.plain(7, 42)

    assert (tree.tokens, tree.parents, tree.num_drafts) == ((42,), (-1,), 0)


def test_the_parent_of_each_node_of_a_chain_is_the_one_before():
    tree = DraftTree.chain(7, (42, 1, 2), drafter_id="x")

    assert (tree.parents, tree.num_drafts, tree.drafter_id) == ((-1, 0, 1), 2, "x")


@given(trees(), st.integers(1, MAX_TREE_NODES + 1))
def test_a_trimmed_tree_is_the_beginning_of_the_tree(tree, num_nodes):
    trimmed = tree.trimmed(num_nodes)

    size = min(num_nodes, len(tree.tokens))
    assert trimmed == DraftTree(
        tree.committed_len,
        tree.tokens[:size],
        tree.parents[:size],
        tree.logprobs[:size],
        tree.drafter_id,
        tree.timings,
    )


def test_timings_add_up_name_by_name():
    total = VerifyTimings(1, 2, 3, 4) + VerifyTimings(10, 20, 30, 40)

    assert total == VerifyTimings(queue_us=11, forward_us=22, accept_us=33, rows=44)


@pytest.mark.parametrize("value", ["a", "A-b_c.9", "x" * 64])
def test_legal_ids_pass(value):
    assert check_id("session_id", value) == value


@pytest.mark.parametrize("value", ["", "x" * 65, "a b", "ä", "a/b", "a\n", "\x00"])
def test_other_ids_are_refused_by_name_and_value(value):
    with pytest.raises(ValueError, match=r"session_id must be 1 to 64 .*got ") as refusal:
        check_id("session_id", value)

    assert repr(value[:80]) in str(refusal.value)


def test_a_refusal_does_not_repeat_a_huge_id():
    with pytest.raises(ValueError, match="session_id") as refusal:
        check_id("session_id", "x" * 10**6)

    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"tokens": []}, "1 to 64 nodes, got 0"),
        ({"tokens": [0] * 65, "parents": [-1, *range(64)]}, "1 to 64 nodes, got 65"),
        ({"tokens": [0, 1], "parents": [-1]}, "2 tokens, 1 parents, 0 logprobs"),
        (
            {"tokens": [0], "parents": [-1], "logprobs": [0, 0]},
            "1 tokens, 1 parents, 2 logprobs",
        ),
        ({"tokens": [0], "parents": [0]}, "root's parent must be -1, got 0"),
        ({"tokens": [0, 1], "parents": [-1, -1]}, r"node 1 must be in \[0, 1\), got -1"),
        ({"tokens": [0, 1], "parents": [-1, 1]}, r"node 1 must be in \[0, 1\), got 1"),
        ({"tokens": [0, 1, 2], "parents": [-1, 0, 2**30]}, r"node 2 .*got 1073741824"),
    ],
)
def test_what_is_no_tree_is_refused(tree, reason):
    with pytest.raises(ValueError, match=reason):
        DraftTree.from_proto(pb.DraftTree(**tree))


def test_a_verdict_that_commits_another_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="got 2 nodes and 2 tokens"):
        Verdict.from_proto(pb.Verdict(path=[1, 2], tokens=[5, 6]))


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"steps": 64}, r"plan.steps must be in \[0, 63\], got 64"),
        ({"steps": 1, "top_k": 64}, r"plan.top_k must be in \[1, 63\], got 64"),
        ({"steps": 1, "draft_tokens": 65}, r"plan.draft_tokens must be in \[1, 64\], got 65"),
    ],
)
def test_a_plan_beyond_its_limits_is_refused(plan, reason):
    with pytest.raises(ValueError, match=reason):
        Plan.from_proto(pb.Plan(**plan))


BEYOND = [
    ("temperature", -0.5, r"\[0, 100\]"),
    ("temperature", 101.0, r"\[0, 100\]"),
    ("top_k", -2, r"\[-1, vocabulary\]"),
    ("top_p", 0.0, r"\(0, 1\]"),
    ("top_p", 1.5, r"\(0, 1\]"),
    ("min_p", -0.5, r"\[0, 1\]"),
    ("min_p", 1.5, r"\[0, 1\]"),
    ("presence_penalty", -2.5, r"\[-2, 2\]"),
    ("presence_penalty", 2.5, r"\[-2, 2\]"),
    ("frequency_penalty", -2.5, r"\[-2, 2\]"),
    ("frequency_penalty", 2.5, r"\[-2, 2\]"),
    ("repetition_penalty", 0.0, r"\(0, 10\]"),
    ("repetition_penalty", 10.5, r"\(0, 10\]"),
    ("top_logprobs", 21, r"\[0, 20\]"),
]
FLOATS = sorted({name for name, value, _ in BEYOND if isinstance(value, float)})


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [*BEYOND, *((name, math.nan, "") for name in FLOATS), ("temperature", math.inf, "")],
)
def test_sampling_beyond_its_limits_is_refused(name, value, limit):
    """Nothing that is not a number passes either."""
    with pytest.raises(ValueError, match=rf"{name} must be in {limit}.*, got {value}"):
        SamplingParams.from_proto(pb.SamplingParams(**{name: value}))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed):
    with pytest.raises(ValueError, match=rf"seed must be in \[0, 2\^64\), got {seed}"):
        SamplingParams(seed=seed)


@pytest.mark.parametrize("bias", [-100.5, 100.5, math.nan, math.inf])
def test_a_logit_bias_beyond_its_limits_is_refused(bias):
    with pytest.raises(ValueError, match=rf"logit_bias\[7\] must be in \[-100, 100\], got {bias}"):
        SamplingParams.from_proto(pb.SamplingParams(logit_bias={7: bias}))


def test_too_many_logit_biases_are_refused():
    most = dict.fromkeys(range(1024), 1.0)
    assert len(SamplingParams(logit_bias=most).logit_bias) == 1024

    with pytest.raises(ValueError, match="logit_bias takes at most 1024 entries, got 1025"):
        SamplingParams(logit_bias=most | {1024: 1.0})


@pytest.mark.parametrize(
    "penalty", [{"presence_penalty": 0.5}, {"frequency_penalty": -0.5}, {"repetition_penalty": 2}]
)
def test_any_penalty_makes_a_logit_depend_on_the_tokens_before(penalty):
    assert not SamplingParams(temperature=0.5, logit_bias={1: 2.0}).penalizes
    assert SamplingParams(**penalty).penalizes
