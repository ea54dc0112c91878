"""The drafter's step for GPUs drafts the trees of `Eagle3Drafter`, whoever else is in the batch.

Where a choice is all but a tie, roundings may decide it: these sessions have none.
"""

import pytest
import torch

from draft_service import graphs
from draft_service.drafters import Draft
from draft_service.drafters.eagle3_gpu import drafter
from draft_service.drafters.eagle3_gpu.step import Eagle3Step
from draft_service.kv_pool import KvPoolFullError
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.played_session import GREEDY
from tests.kernels.gpu.eagle3_pair import PAGES, Pair, unrounded_logits, write_drafter

SAMPLED = SamplingParams(temperature=0.8, seed=2**63 + 5)
FILTERED = SamplingParams(temperature=1.3, top_k=9, top_p=0.9, min_p=0.01, seed=77)
CHAIN, TREE, SMALL_TREE = Plan(3), Plan(3, 2, 6), Plan(2, 2, 4)
TIED = {"tie_word_embeddings": True, "without": ["lm_head.weight"]}
NO_NORMS = {"use_input_layernorm_in_first_layer": False, "use_last_layernorm": False}
SWITCHES = {
    "eagle_3.1 of few tokens, with biases": {
        "fc_norm": True,
        "norm_output": True,
        "draft_vocab_size": 50,
        "bias": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "normed taps and residual, tied, of another target's width": {
        "norm_before_fc": True,
        "norm_before_residual": True,
        "target_hidden_size": 48,
        "num_key_value_heads": 1,
        **TIED,
    },
    "fewer norms": {
        "eagle_config": NO_NORMS,
        "without": ["midlayer.input_layernorm.weight", "norm.weight"],
    },
}


@pytest.fixture(autouse=True)
def _unrounded_logits():
    with unrounded_logits():
        yield


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    """To an interpreter padding is not free."""
    monkeypatch.setattr(graphs, "ROWS", (4, 8, 16, 24, 48, 256))
    monkeypatch.setattr(graphs, "SESSIONS", (1, 2, 3, 4, 64))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.load(write_drafter(tmp_path_factory.mktemp("tiny")))


def check(drafts):
    assert drafts
    for one in drafts:
        one.check()


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_means_what_it_means_on_a_cpu(tmp_path, switch):
    """In rows with taps, and in levels of guesses."""
    width = SWITCHES[switch].get("target_hidden_size", 32)
    pair = Pair.load(write_drafter(tmp_path, **SWITCHES[switch]), hidden_size=width)
    chain = pair.guest(GREEDY, prompt_len=6, hidden=width)
    tree = pair.guest(FILTERED, seed=2, prompt_len=4, hidden=width)
    check(pair.round([(chain, Plan(2)), (tree, SMALL_TREE)]))


def test_sessions_that_come_go_and_take_in_prompts_piece_by_piece(pair):
    """Chains and trees over several rounds, on pages that others had, from anywhere in a text."""
    first = pair.guest(GREEDY, prompt_len=8)
    late = pair.guest(SAMPLED, first_row=13, seed=1, prompt_len=20)
    prompt = pair.guest(FILTERED, seed=2, prompt_len=67)
    used = pair.by_gpu.kv_usage.used
    pair.extend([(first, 7), (late, 3), (prompt, 38)])
    (of_first,) = pair.draft([(first, TREE)])
    of_first.check()
    first.commit(of_first)

    pair.extend([(first, 9), (prompt, 20)])
    pair.extend([(prompt, 9), (late, 9)])
    drafts = pair.draft([(late, CHAIN), (prompt, TREE), (first, CHAIN)])
    check(drafts)
    for guest, draft in zip((late, prompt, first), drafts, strict=True):
        guest.commit(draft)

    prompt.leave()
    heir = pair.guest(GREEDY, seed=3, prompt_len=6)
    check(pair.round([(heir, TREE), (first, Plan(1, 3, 4)), (late, Plan(4, 1, 3))]))
    for guest in (first, late, heir):
        guest.leave()
    assert pair.by_gpu.kv_usage.used == used == 0


def test_a_draft_without_new_rows_goes_on_from_what_was_kept(pair):
    """Also after others were in between."""
    guest, other = pair.guest(SAMPLED, prompt_len=6), pair.guest(GREEDY, seed=5, prompt_len=9)
    before = pair.round([(guest, Plan(2))])
    pair.round([(other, SMALL_TREE)])
    after = pair.draft([(guest, Plan(2))])
    assert before == after
    check(after)
    for one in (guest, other):
        one.leave()


def test_a_session_does_not_feel_the_others_nor_its_bucket(pair):
    """Bit for bit: with more rows, wider and deeper trees beside it, and sessions without any."""

    def drafted(*others):
        guest = pair.guest(FILTERED, seed=9, prompt_len=10)
        behind = pair.guest(GREEDY, seed=8, prompt_len=30)
        company = [(pair.guest(SAMPLED, seed=n, prompt_len=5), plan) for n, plan in others]
        rows = [(behind, 3), *((one, 9) for one, _ in company)] if company else []
        pair.extend([(guest, 9), *rows])
        drafts = pair.draft([*company, (guest, SMALL_TREE)])
        for one in (guest, behind, *(one for one, _ in company)):
            one.leave()
        return drafts[-1].by_gpu

    alone = drafted()
    assert alone.tokens
    assert drafted((1, Plan(1)), (2, Plan(3, 3, 9))) == alone


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_taps_that_are_no_numbers_stay_in_their_session(pair, bad):
    """Also in pages that another session gets, and where a chain beside a tree has no node."""
    drafts = []
    for spoils in (False, True, False):
        tree = pair.guest(GREEDY, seed=4, prompt_len=9)
        chain = pair.guest(SAMPLED, seed=4, prompt_len=5)
        if spoils:
            tree.session.spoil(bad)
        drafts.append(pair.round([(tree, SMALL_TREE), (chain, Plan(2))])[1].by_gpu)
        # The tree's page is the next chain's, which has fewer rows.
        tree.leave()
        chain.leave()
    assert drafts == [drafts[0]] * 3


def test_rows_of_a_session_that_ends_before_the_draft_are_dropped(pair):
    """Its pages are another's by then."""
    gone, heir = pair.guest(GREEDY, prompt_len=5), pair.guest(SAMPLED, seed=2, prompt_len=5)
    pair.extend([(gone, 4)])
    gone.leave()
    check(pair.round([(heir, Plan(2))]))
    heir.leave()


def test_without_a_row_there_is_no_draft(pair):
    guest = pair.guest(GREEDY, prompt_len=1)
    assert pair.draft([(guest, CHAIN)]) == [(Draft(), Draft())]
    guest.leave()


def test_a_full_cache_is_said(pair):
    guest = pair.guest(GREEDY)
    with pytest.raises(KvPoolFullError):
        guest.followed[1].follower.reserve(64 * PAGES + 1)
    guest.leave()


@pytest.mark.parametrize("clears", [True, False])
def test_a_bucket_that_is_captured_later_changes_nothing_of_other_sessions(
    tmp_path, monkeypatch, clears
):
    """It is run first. With what lay in its inputs it would write to a page that is another's."""
    monkeypatch.setattr(drafter, "capture_on", lambda *_, **__: lambda run: run)
    if not clears:
        monkeypatch.setattr(Eagle3Step, "clear", lambda _: None)
    pair = Pair.load(write_drafter(tmp_path))
    gone = pair.guest(GREEDY, seed=1, prompt_len=4)
    pair.round([(gone, Plan(2))])
    gone.leave()
    heir = pair.guest(GREEDY, seed=2, prompt_len=24)
    pair.extend([(heir, 23)])
    pair.draft([])
    pair.round([(pair.guest(GREEDY, seed=3, prompt_len=4), Plan(2))])
    (drafts,) = pair.draft([(heir, Plan(2))])
    assert (drafts.by_gpu.tokens == drafts.by_cpu.tokens) == clears
