"""The drafter against a plain transcription of EAGLE-3, and the laws of following a session."""

import hashlib
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draft_service.drafters import Draft
from protos import speculation_pb2 as pb
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.plain_eagle3 import PlainEagle3
from tests.draft_service.drafters.played_session import (
    GREEDY,
    HIDDEN,
    LAYERS,
    SAMPLED,
    TAP_LAYERS,
    VOCAB,
    PlayedSession,
    StalePlain,
    load,
    play,
    write_target,
)
from tests.tiny_models import write_tiny_eagle3

YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
SWITCHES = {
    "as_it_comes": {},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "eagle_3.1": {"fc_norm": True, "norm_output": True},
    "no_first_layer_norm": {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
    "no_last_norm": {"eagle_config": {"use_last_layernorm": False}},
    "bias": {"bias": True},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "draft_vocab": {"draft_vocab_size": 50},
    "yarn": {"rope_scaling": YARN},
    "yarn_uneven_mscale": {"rope_scaling": YARN | {"mscale_all_dim": 0.5}},
    "multi_head": {"num_key_value_heads": 4},
    "one_key_head": {"num_key_value_heads": 1},
    "other_target_width": {"target_hidden_size": 48},
}
UNUSED = {
    "no_first_layer_norm": ["midlayer.input_layernorm.weight"],
    "no_last_norm": ["norm.weight"],
}
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return write_tiny_eagle3(tmp_path_factory.mktemp("tiny"), **sizes)


@pytest.fixture(scope="module")
def tiny(tiny_dir):
    return load(tiny_dir)


def assert_drafts_agree(drafter, plain, session, sampling, *, first_row=0, rounds=6):
    """Every round's draft is what the plain drafter computes from nothing but real rows."""
    for draft in play(drafter, session, sampling, first_row=first_row, rounds=rounds):
        h = plain.fuse(session.taps()[first_row:])
        expected, logprobs, _ = plain.chain(
            session.tokens, h, first_row, len(draft.tokens), sampling
        )

        assert list(draft.tokens) == expected
        assert draft.parents == tuple(range(len(expected)))
        assert draft.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_drafts_are_those_of_the_plain_transcription(tmp_path, switch, sampling):
    """Over several rounds with random acceptance, under every switch of the config."""
    config = SWITCHES[switch]
    write_tiny_eagle3(tmp_path, **sizes, seed=3, without=UNUSED.get(switch, []), **config)
    width = config.get("target_hidden_size", HIDDEN)
    drafter = load(tmp_path, hidden_size=width)
    session = PlayedSession(seed=len(switch), hidden=width)

    assert_drafts_agree(drafter, PlainEagle3(tmp_path), session, sampling)


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}],
    ids=str,
)
def test_drafts_pass_the_sessions_filters_with_its_noise(tiny, tiny_dir, filters):
    """So that they agree with a target that thinks alike as often as they can."""
    sampling = SamplingParams(temperature=3.0, seed=2**63 + 1, **filters)

    assert_drafts_agree(tiny, PlainEagle3(tiny_dir), PlayedSession(), sampling, rounds=12)


@pytest.mark.parametrize("draft_vocab_size", [None, 50])
@pytest.mark.parametrize(
    "without",
    [["embed_tokens.weight"], ["lm_head.weight"], ["embed_tokens.weight", "lm_head.weight"]],
    ids=["no_embedding", "no_head", "neither"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_missing_embedding_and_head_are_the_targets(tmp_path, without, draft_vocab_size, tied):
    """A smaller draft vocabulary gets the rows of the target's head that it maps to."""
    path = write_tiny_eagle3(
        tmp_path / "drafter", **sizes, without=without, draft_vocab_size=draft_vocab_size
    )
    shared = write_target(tmp_path / "target", tied=tied)
    drafter = load(path, model_dir=tmp_path / "target")

    assert_drafts_agree(drafter, PlainEagle3(path, shared), PlayedSession(), SAMPLED)


def test_tied_drafter_reads_logits_from_its_own_embedding(tmp_path):
    write_tiny_eagle3(tmp_path, **sizes, without=["lm_head.weight"], tie_word_embeddings=True)
    plain = PlainEagle3(tmp_path)
    plain.w["lm_head.weight"] = plain.w["embed_tokens.weight"]

    drafter = load(tmp_path)

    assert_drafts_agree(drafter, plain, PlayedSession(), GREEDY)


def test_a_late_joiner_sees_rows_from_its_first_on(tiny, tiny_dir):
    """Positions stay those of the session: the noise of each token is its own."""
    session = PlayedSession(prompt_len=40)

    assert_drafts_agree(tiny, PlainEagle3(tiny_dir), session, SAMPLED, first_row=13)


def test_contexts_longer_than_max_position_embeddings_are_followed(tiny, tiny_dir):
    """The config says 64; here are 700, which also take two pieces and grow the cache."""
    session = PlayedSession(prompt_len=700)

    assert_drafts_agree(tiny, PlainEagle3(tiny_dir), session, GREEDY, rounds=2)


def test_a_drafter_that_kept_its_guesses_would_draft_otherwise(tiny, tiny_dir):
    """Shows that the laws above notice a missing overwrite after verify."""
    session, stale = PlayedSession(seed=1), StalePlain(PlainEagle3(tiny_dir))

    pairs = [
        (list(draft.tokens), stale.chain(session, len(draft.tokens)))
        for draft in play(tiny, session, GREEDY, rounds=8)
    ]

    ours, stales = zip(*pairs, strict=True)
    assert ours[0] == stales[0]
    assert ours != stales


@pytest.mark.parametrize("shift", [-1, 1])
def test_layers_off_by_one_draft_otherwise(tiny, tiny_dir, shift):
    session, plain = PlayedSession(seed=1), PlainEagle3(tiny_dir)

    pairs = [
        (
            list(draft.tokens),
            plain.chain(
                session.tokens, plain.fuse(session.taps(shift)), 0, len(draft.tokens), GREEDY
            )[0],
        )
        for draft in play(tiny, session, GREEDY)
    ]

    assert sum(ours != shifted for ours, shifted in pairs) > len(pairs) / 2


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.sets(st.integers(1, 149), max_size=6), drafted=st.sets(st.integers(1, 149)))
def test_neither_the_pieces_of_an_extend_nor_drafts_in_between_leave_a_trace(tiny, cuts, drafted):
    """Bit for bit: rows do not feel each other, and real rows cover guessed ones."""
    session = PlayedSession(prompt_len=151)
    tokens, taps, plan = session.tokens, session.taps(), Plan(steps=5)
    whole, pieces = Followed.by(tiny), Followed.by(tiny)
    whole.extend(0, tokens[1:], taps)
    edges = [0, *sorted(cuts | drafted), 150]
    for start, stop in pairwise(edges):
        pieces.extend(start, tokens[start + 1 : stop + 1], taps[start:stop])
        if stop in drafted:
            pieces.draft(tokens[: stop + 1], plan, GREEDY)

    expected = whole.draft(tokens, plan, SAMPLED)

    assert expected == pieces.draft(tokens, plan, SAMPLED)
    assert len(expected.tokens) == 5


def test_a_draft_can_be_asked_for_again_under_another_plan(tiny):
    session, follower = PlayedSession(), Followed.by(tiny)
    follower.extend(0, session.tokens[1:], session.taps())

    long = follower.draft(session.tokens, Plan(steps=6), GREEDY)
    short = follower.draft(session.tokens, Plan(steps=2), GREEDY)

    assert short.tokens == long.tokens[:2]
    assert follower.draft(session.tokens, Plan(steps=6), GREEDY) == long


@pytest.mark.parametrize(
    ("plan", "num_drafts"),
    [
        (Plan(steps=0), 0),
        (Plan(steps=3), 3),
        (Plan(steps=3, draft_tokens=3), 2),
        (Plan(steps=3, draft_tokens=1), 0),
        (Plan(steps=63, draft_tokens=64), 63),
    ],
)
def test_a_draft_is_a_chain_that_fits_steps_and_draft_tokens(tiny, plan, num_drafts):
    session, follower = PlayedSession(), Followed.by(tiny)
    follower.extend(0, session.tokens[1:], session.taps())

    draft = follower.draft(session.tokens, plan, GREEDY)

    assert len(draft.tokens) == len(draft.logprobs) == num_drafts
    assert draft.parents == tuple(range(num_drafts))


def test_without_a_row_there_is_nothing_to_go_by(tiny):
    follower = Followed.by(tiny, 7)

    assert follower.draft(list(range(8)), Plan(steps=3), GREEDY) == Draft()


def test_a_session_may_fill_the_whole_context(tmp_path):
    """Guesses and padding reach past the last position that can be committed."""
    write_tiny_eagle3(tmp_path, **sizes)
    drafter = load(tmp_path, max_context_len=64)
    session, follower = PlayedSession(prompt_len=64), Followed.by(drafter)
    follower.extend(0, session.tokens[1:], session.taps())

    assert len(follower.draft(session.tokens, Plan(steps=63), GREEDY).tokens) == 63


def test_drafts_are_tokens_of_the_target_that_the_draft_vocabulary_holds(tmp_path):
    write_tiny_eagle3(tmp_path, **sizes, draft_vocab_size=20)
    drafter = load(tmp_path)
    known, drafted = set(PlainEagle3(tmp_path).ids), set()

    for draft in play(drafter, PlayedSession(), SAMPLED, rounds=12):
        drafted |= set(draft.tokens)

    assert drafted <= known
    assert max(drafted) >= 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_taps_come_in_any_dtype(tmp_path, dtype):
    """The weights' dtype is computed in; the taps' may be another."""
    write_tiny_eagle3(tmp_path, **sizes, dtype=dtype)
    drafter = load(tmp_path)
    session = PlayedSession()
    taps, drafts = session.taps().to(torch.bfloat16), []
    for tap_dtype in (torch.bfloat16, torch.float32):
        follower = Followed.by(drafter)
        follower.extend(0, session.tokens[1:], taps.to(tap_dtype))
        drafts.append(follower.draft(session.tokens, Plan(steps=4), GREEDY))

    assert drafts[0] == drafts[1]


def test_pairing_states_what_must_fit_the_target(tmp_path):
    """The taps' width and dtype are the target's, the digest that of a tokenizer.json shipped."""
    write_tiny_eagle3(tmp_path, **sizes, target_hidden_size=48)
    (tmp_path / "tokenizer.json").write_text("{}")

    drafter = load(tmp_path, "mine", hidden_size=48, tap_dtype=pb.DTYPE_F16)

    assert (drafter.drafter_id, drafter.kind) == ("mine", "eagle3")
    assert drafter.pairing.hidden_size == 48
    assert drafter.pairing.vocab_size == VOCAB
    assert drafter.pairing.tap_layers == TAP_LAYERS
    assert drafter.pairing.tap_dtype == pb.DTYPE_F16
    assert drafter.pairing.tokenizer_digest == hashlib.sha256(b"{}").hexdigest()
