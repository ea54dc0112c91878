"""Whatever is drafted, and however it is cut into steps, a session is told the same.

The same means: the same tokens, and bitwise the same logprobs and taps, as when one token after the
other is decoded.
"""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.noise import gumbel
from protos.messages import SamplingParams
from target_service import engine as engine_module
from target_service import judgement, token_choice
from target_service.kv_cache import KvCache
from tests.target_service.engine_cases import (
    NUM_NEW,
    PROMPT_LENS,
    SAMPLINGS,
    SIZES,
    VOCAB,
    play,
    prompt_of,
)
from tests.target_service.played_session import PlayedSession, Told, forward_chain, random_tree

FOND_OF_REPETITION = SamplingParams(
    temperature=0.7, seed=3, presence_penalty=-0.5, frequency_penalty=-1.0, repetition_penalty=0.9
)


def speculate(session: PlayedSession, future: list[int], rng: random.Random, nodes: int) -> Told:
    """Verify random trees, some of whose nodes are right, for the whole of `future`."""
    while (done := session.session.num_new_tokens) < NUM_NEW:
        session.verify(*random_tree(rng, future[done:], VOCAB, rng.randint(0, nodes), hit_rate=0.8))
    return session.told


@settings(max_examples=60)
@given(
    model=st.sampled_from(list(SIZES)),
    sampling=st.sampled_from(list(SAMPLINGS)),
    prompt_len=st.sampled_from(PROMPT_LENS),
    chunk_len=st.integers(1, 140),
    nodes=st.sampled_from([0, 3, 16, 63]),
    rng=st.randoms(use_true_random=True),
)
def test_any_cut_into_chunks_steps_and_trees_tells_the_same(
    models, plain, model, sampling, prompt_len, chunk_len, nodes, rng
):
    reference = plain(model, sampling, prompt_len)
    session = play(models[model], sampling, prompt_len, chunk_len)
    speculate(session, reference.tokens, rng, nodes).assert_begins_as(reference)


def test_sessions_that_take_turns_tell_the_same(models, plain):
    """Sessions share an engine, never anything of each other."""
    names = list(SAMPLINGS)
    sessions = [play(models["float32"], name, 17, chunk_len=5) for name in names]
    for _ in range(NUM_NEW):
        for session in sessions:
            session.verify()
    for name, session in zip(names, sessions, strict=True):
        session.told.assert_begins_as(plain("float32", name, 17))


def test_two_threads_and_a_large_vocabulary_tell_the_same(write_model):
    """Large enough that torch splits the sum of one row among threads."""
    torch.set_num_threads(2)
    try:
        model = write_model(layers=3, hidden=16, vocab=33_000)
        reference = play(model, "nucleus", 5).decode(6)
        session = play(model, "nucleus", 5, chunk_len=8)
        session.verify()
        session.verify(reference.tokens[1:5], range(4))
        assert len(session.told.tokens) == 6
        session.told.assert_begins_as(reference)
    finally:
        torch.set_num_threads(1)


class TestTheLawCanFail:
    """Each of these mistakes must be seen, or the law above proves nothing."""

    def breaks(self, models, plain, tree=None) -> bool:
        reference = plain("float32", "everything", 17)
        session = play(models["float32"], "everything", 17, chunk_len=64)
        try:
            while session.session.num_new_tokens < 20:
                future = reference.tokens[session.session.num_new_tokens :]
                session.verify(*(tree or chain)(future[:6]))
            session.told.assert_begins_as(reference)
        except AssertionError:
            return True
        return False

    def test_nothing_is_seen_where_nothing_is_wrong(self, models, plain):
        assert not self.breaks(models, plain)
        assert not self.breaks(models, plain, second_branch)

    def test_noise_of_a_wrong_position(self, models, plain, monkeypatch):
        choose = token_choice.agreement_tokens
        monkeypatch.setattr(
            token_choice,
            "agreement_tokens",
            lambda logits, positions, *rest: choose(logits, positions * 0 + positions[0], *rest),
        )
        assert self.breaks(models, plain)

    def test_penalties_shared_by_all_nodes(self, models, plain, monkeypatch):
        penalize = token_choice.penalized_logits
        monkeypatch.setattr(
            token_choice,
            "penalized_logits",
            lambda logits, counts, seen, how: penalize(
                logits, counts[:1].expand_as(counts), seen[:1].expand_as(seen), how
            ),
        )
        assert self.breaks(models, plain)

    def test_a_cache_that_keeps_the_wrong_branch(self, models, plain, monkeypatch):
        monkeypatch.setattr(KvCache, "move", lambda *_: None)
        assert self.breaks(models, plain, second_branch)

    def test_taps_of_rejected_rows(self, models, plain, monkeypatch):
        step = engine_module.Engine.step

        def swapped(self, batch):
            return [
                engine_module.replace(outcome, taps_KX=outcome.taps_KX.flip(0))
                for outcome in step(self, batch)
            ]

        monkeypatch.setattr(engine_module.Engine, "step", swapped)
        assert self.breaks(models, plain)


def chain(future: list[int]) -> tuple[list[int], list[int]]:
    return future, list(range(len(future)))


def second_branch(future: list[int]) -> tuple[list[int], list[int]]:
    """Return a tree of two branches, of which the second one is right."""
    wrong = [(token + 1) % VOCAB for token in future]
    second = [0, *range(len(wrong) + 1, len(wrong) + len(future))]
    return wrong + future, [*range(len(wrong)), *second]


class TestNodes:
    @pytest.mark.parametrize("sampling", list(SAMPLINGS))
    @pytest.mark.parametrize("model", list(SIZES))
    def test_a_node_chooses_as_if_its_path_was_committed(
        self, models, model, sampling, monkeypatch
    ):
        """Penalties, noise, suppression, bias: of its own path, wherever else the tree goes."""
        tokens = [5, 6, 5, 9, 9, 6, 11, 5, 12, 12, 5, 2]
        parents = [0, 0, 1, 1, 2, 3, 3, 6, 7, 9, 10, 0]
        session = play(models[model], sampling, 17, chunk_len=64)
        session.decode(3)
        answer = list(session.told.tokens)
        chosen = record_choices(monkeypatch)
        session.verify(tokens, parents)
        for node, path in enumerate(paths_below_root(tokens, parents)):
            alone = play(models[model], sampling, 17, chunk_len=64)
            alone.force(answer + path)
            assert alone.verify().verdict.tokens == (chosen[0][node],), f"node {node}"

    @pytest.mark.parametrize("sampling", [SAMPLINGS["everything"], FOND_OF_REPETITION])
    @pytest.mark.parametrize("prompt_len", PROMPT_LENS)
    def test_the_choice_is_the_formula(self, models, prompt_len, sampling):
        """Written down once more, one token at a time, without a tree."""
        prompt = prompt_of(prompt_len)
        session = PlayedSession(models["float32"], prompt, sampling, chunk_len=64)
        answer = session.decode(NUM_NEW).tokens
        logits_RV, _ = forward_chain(models["float32"], prompt + answer)
        for num_new, token in enumerate(answer):
            logits_V = logits_RV[prompt_len + num_new - 1]
            assert naive_choice(logits_V, prompt, answer[:num_new], sampling) == token

    def test_penalties_change_what_nodes_choose(self, models, monkeypatch):
        """Otherwise the law above would hold for an engine without penalties."""
        choices = []
        for sampling in (SAMPLINGS["everything"], SamplingParams(temperature=1.0, seed=11)):
            session = PlayedSession(models["float32"], prompt_of(17), sampling, chunk_len=64)
            chosen = record_choices(monkeypatch)
            session.verify()
            choices.append(chosen[0])
        assert choices[0] != choices[1]

    def test_stop_tokens_are_suppressed_until_enough_was_generated(self, plain):
        tokens = plain("float32", "everything", 17).tokens
        assert all(token % 2 for token in tokens[:7])
        assert any(token % 2 == 0 for token in tokens[7:])

    def test_a_bias_is_added_to_every_node(self, models):
        sampling = SamplingParams(temperature=0, logit_bias={9: 100.0})
        session = PlayedSession(models["float32"], prompt_of(2), sampling, chunk_len=64)
        session.verify()
        assert session.verify([9, 9, 8], [0, 1, 2]).verdict.tokens == (9, 9, 9)


def record_choices(monkeypatch) -> list[list[int]]:
    """Return a list that gets the tokens chosen at the nodes of every tree from now on."""
    seen = []
    choose = judgement.choose_tokens

    def recorded(*args):
        seen.append(choose(*args))
        return seen[-1]

    monkeypatch.setattr(judgement, "choose_tokens", recorded)
    return seen


def paths_below_root(tokens: list[int], parents: list[int]) -> list[list[int]]:
    """Return the tokens on the path to every node, the root first."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent], token])
    return paths


def naive_choice(
    logits_V: torch.Tensor, prompt: list[int], answer: list[int], sampling: SamplingParams
) -> int:
    logits_V = logits_V.clone()
    for token, bias in sampling.logit_bias.items():
        logits_V[token] += bias
    if len(answer) < sampling.min_new_tokens:
        logits_V[list(sampling.suppressed_token_ids)] = -torch.inf
    for token in {*prompt, *answer}:
        factor = sampling.repetition_penalty
        logits_V[token] *= 1 / factor if logits_V[token] > 0 else factor
    for token, count in Counter(answer).items():
        logits_V[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    noise_V = gumbel(sampling.seed, len(prompt) + len(answer), torch.arange(VOCAB))
    return int((logits_V / sampling.temperature + noise_V).argmax())


class TestCompaction:
    def test_rows_that_wait_and_a_tree_in_one_step(self, models, plain):
        """The tree's nodes lie behind the rows that were not cached yet."""
        reference = plain("float32", "nucleus", 17)
        session = play(models["float32"], "nucleus", 17, chunk_len=64)
        session.force(reference.tokens[:3])
        assert session.verify(*second_branch(reference.tokens[3:7])).verdict.path == (5, 6, 7, 8)
        assert session.verify().verdict.tokens == (reference.tokens[8],)
        fresh = play(models["float32"], "nucleus", 17, chunk_len=64)
        fresh.force(reference.tokens[:8])
        fresh.verify()
        assert_same_rows(session, fresh)

    @pytest.mark.parametrize("model", list(SIZES))
    def test_after_accepting_a_later_branch_the_cache_is_that_of_a_fresh_prefill(
        self, models, plain, model
    ):
        reference = plain(model, "greedy", 63)
        session = play(models[model], "greedy", 63, chunk_len=40)
        while len(session.told.tokens) < 18:
            future = reference.tokens[len(session.told.tokens) :]
            verdict = session.verify(*second_branch(future[:4])).verdict
            assert verdict.path in ((), (5, 6, 7, 8))
        fresh = play(models[model], "greedy", 63, chunk_len=128)
        fresh.force(session.told.tokens)
        assert fresh.verify().verdict.top_logprobs == session.verify().verdict.top_logprobs
        assert_same_rows(session, fresh)


def assert_same_rows(a: PlayedSession, b: PlayedSession) -> None:
    assert a.session.cached_len == b.session.cached_len
    for mine, theirs in zip(a.cached(), b.cached(), strict=True):
        assert torch.equal(mine, theirs)
