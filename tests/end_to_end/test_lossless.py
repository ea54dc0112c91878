"""The first promise: a drafter can change the speed, never the text, and not a bit of a logprob."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from slipstream.client import AsyncClient, Completion, Request
from slipstream.stack import LocalStack
from tests.end_to_end import services
from tests.end_to_end.losslessness import (
    DRAFTERS,
    PROMPTS,
    SAMPLINGS,
    answers,
    differing,
    request,
)

TINY_TOKENS = 32
FEW_TOKENS = (40, 41, 42)
REFERENCE_TOKENS = 16
REAL_TOKENS = 24
MATRIX_TOKENS = 32


@cache
def plain_answers(
    gateway: str, prompts: tuple[str, ...], sampling: str, tokens: int
) -> list[Completion]:
    """Return the plain answers: what everything else is compared with. Once is enough."""
    return answers(gateway, [request(prompt, sampling, tokens, None) for prompt in prompts])


def speculated(
    gateway: str,
    prompts: Sequence[str],
    sampling: str,
    tokens: int,
    drafter: str,
    mode: str = "fixed",
) -> list[Completion]:
    """Return the answers with a drafter."""
    return answers(
        gateway, [request(prompt, sampling, tokens, drafter, mode) for prompt in prompts]
    )


def drafted(completions: Sequence[Completion]) -> int:
    return sum(completion.finish.speculation.drafted for completion in completions)


def rounds_for_drafts(completions: Sequence[Completion]) -> int:
    """Rounds in which a draft was asked for, in time or not."""
    plans = [use for completion in completions for use in completion.finish.speculation.plans]
    return sum(use.rounds for use in plans if use.plan.steps)


def check_drafters(
    stack: LocalStack, prompts: Sequence[str], sampling: str, tokens: int
) -> dict[str, list[Completion]]:
    """Honest drafters of a stack leave every answer alone. Returns what each had a part in."""
    plain = plain_answers(stack.addresses.gateway, tuple(prompts), sampling, tokens)
    gateway = stack.addresses.gateway
    done = {one: speculated(gateway, prompts, sampling, tokens, one) for one in DRAFTERS}

    assert [one for one in DRAFTERS if differing(plain, done[one])] == []
    assert drafted(done["eagle"]) > 0
    return done


def check_drafters_of_a_real_model(
    stack: LocalStack, prompts: Sequence[str], sampling: str, tokens: int
) -> None:
    """A real text repeats itself, but under penalties, and then prompt lookup drafts, too."""
    done = check_drafters(stack, prompts, sampling, tokens)
    assert drafted(done["ngram"]) > 0 or sampling == "penalized"


def check_policy(
    stack: LocalStack, adversary: str, prompts: Sequence[str], sampling: str, tokens: int
) -> None:
    """What the automatic policy tries, changes and gives up leaves every answer alone."""
    plain = plain_answers(stack.addresses.gateway, tuple(prompts), sampling, tokens)

    def check(gateway: str, drafter: str) -> list[Completion]:
        # The second time it knows more.
        twice = [speculated(gateway, prompts, sampling, tokens, drafter, "auto") for _ in range(2)]
        assert [differing(plain, done) for done in twice] == [[], []], drafter
        return [one for done in twice for one in done]

    target, draft = stack.addresses.target, stack.addresses.draft
    with services.gateway(stack.config.model, target, draft, deadline_ms=2000) as fresh:
        done = {drafter: check(fresh, drafter) for drafter in DRAFTERS}
    check(adversary, "adversary")

    # What nobody knows yet is tried; a tiny target may be too fast for a draft to come in time.
    assert rounds_for_drafts(done["eagle"]) > 0


def check_adversary(
    stack: LocalStack, adversary: str, prompts: Sequence[str], sampling: str, tokens: int
) -> None:
    """A drafter that means harm leaves every answer alone, and its trees are verified.

    Asked again it knows the texts, and much of what it drafts is accepted.
    """
    plain = plain_answers(stack.addresses.gateway, tuple(prompts), sampling, tokens)

    first, again = (speculated(adversary, prompts, sampling, tokens, "adversary") for _ in range(2))

    assert differing(plain, first) == differing(plain, again) == []
    assert drafted(first) > 0
    assert sum(one.finish.speculation.accepted for one in again) > len(prompts)


async def _killing(stack: LocalStack, requests: Sequence[Request]) -> list[Completion]:
    """Answer all requests; kill the draft service once half of them have drafts behind them."""
    drafting = 0

    async def answer(client: AsyncClient, one: Request) -> Completion:
        nonlocal drafting
        chunks = []
        async for chunk in client.stream(one, timeout_s=600):
            chunks.append(chunk)
            if len(chunks) == 4:
                drafting += 1
                if drafting == len(requests) // 2:
                    stack.processes["draft"].kill()
        return Completion.of(chunks)

    async with AsyncClient(stack.addresses.gateway) as client:
        return list(await asyncio.gather(*(answer(client, one) for one in requests)))


def check_killed_drafter(
    stack: LocalStack, prompts: Sequence[str], sampling: str, tokens: int
) -> None:
    """A drafter that dies mid-answer leaves every answer alone."""
    plain = plain_answers(stack.addresses.gateway, tuple(prompts), sampling, tokens)
    requests = [request(prompt, sampling, tokens, "ngram") for prompt in prompts]

    done = asyncio.run(_killing(stack, requests))

    assert differing(plain, done) == []
    assert any(completion.finish.speculation.missed for completion in done)


@pytest.fixture
def mortal_tiny_stack(tiny_stack: LocalStack) -> Iterator[LocalStack]:
    """The tiny stack, with its draft service brought back afterwards."""
    yield tiny_stack
    revive(tiny_stack)


@pytest.fixture
def mortal_smollm2_stack(smollm2_stack: LocalStack) -> Iterator[LocalStack]:
    """The embedded model's stack, with its draft service brought back afterwards."""
    yield smollm2_stack
    revive(smollm2_stack)


def revive(stack: LocalStack) -> None:
    stack.processes["draft"].wait(10)
    stack.spawn("draft")
    stack.wait_healthy("draft")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafters_never_change_a_tiny_models_text(tiny_stack, sampling):
    """Prompt lookup and a random EAGLE-3 drafter, 20 prompts at once."""
    check_drafters(tiny_stack, PROMPTS, sampling, TINY_TOKENS)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_prompt_lookup_never_changes_a_text_that_repeats_itself(tiny_stack, temperature):
    """A text of three words does, and then prompt lookup is right now and then."""
    sampling = {
        "temperature": temperature,
        "seed": 7,
        "logit_bias": dict.fromkeys(FEW_TOKENS, 100.0),
    }
    requests = [
        Request(
            chat=PROMPTS[0],
            sampling=sampling,
            stopping={"max_new_tokens": TINY_TOKENS, "ignore_eos": True},
            **how,
        )
        for how in ({"mode": "off"}, {"mode": "fixed", "speculation": {"drafter_id": "ngram"}})
    ]

    plain, done = answers(tiny_stack.addresses.gateway, requests)

    assert differing([plain], [done]) == []
    assert set(plain.token_ids) <= {*FEW_TOKENS}
    assert done.finish.speculation.accepted > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafters_never_change_what_the_reference_kernels_say(reference_stack, sampling):
    """As machines without a compiler answer; shorter, as that is slow."""
    gateway = reference_stack.addresses.gateway
    plain = plain_answers(gateway, PROMPTS, sampling, REFERENCE_TOKENS)
    done: list[Completion] = []
    for drafter in DRAFTERS:
        done += speculated(gateway, PROMPTS, sampling, REFERENCE_TOKENS, drafter)
        assert differing(plain, done[-len(plain) :]) == [], drafter
    assert drafted(done) > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_adversary_never_changes_a_tiny_models_text(tiny_stack, tiny_adversary, sampling):
    """Trees of any shape, wrong in any way."""
    check_adversary(tiny_stack, tiny_adversary, PROMPTS, sampling, TINY_TOKENS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_policy_never_changes_a_tiny_models_text(tiny_stack, tiny_adversary, sampling):
    """Speculating or not, with whatever plan, with good drafters and bad.

    In answers that are long enough for a drafter to join what a tiny target decodes.
    """
    check_policy(tiny_stack, tiny_adversary, PROMPTS, sampling, 3 * TINY_TOKENS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_killed_drafter_never_changes_a_tiny_models_text(mortal_tiny_stack, sampling):
    """kill -9 in the middle of 20 answers."""
    check_killed_drafter(mortal_tiny_stack, PROMPTS, sampling, TINY_TOKENS)


def test_another_seed_is_another_text(tiny_stack):
    """The negative control: the comparison above does see a difference."""
    one, other = (
        answers(
            tiny_stack.addresses.gateway,
            [
                Request(chat=prompt, sampling={"seed": seed}, stopping={"max_new_tokens": 16})
                for prompt in PROMPTS[:4]
            ],
        )
        for seed in (1, 2)
    )

    assert differing(one, other) == [0, 1, 2, 3]


@pytest.mark.model
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafters_never_change_the_embedded_models_text(smollm2_stack, sampling):
    """The same on the embedded model, on fewer prompts."""
    check_drafters_of_a_real_model(smollm2_stack, PROMPTS[:3], sampling, REAL_TOKENS)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("sampling", SAMPLINGS)
class TestTheWholeMatrixOnTheEmbeddedModel:
    """20 prompts, three ways of sampling, every kind of drafter."""

    def test_drafters(self, smollm2_stack, sampling):
        """Prompt lookup and a random EAGLE-3 drafter."""
        check_drafters_of_a_real_model(smollm2_stack, PROMPTS, sampling, MATRIX_TOKENS)

    def test_adversary(self, smollm2_stack, smollm2_adversary, sampling):
        """Trees of any shape, wrong in any way."""
        check_adversary(smollm2_stack, smollm2_adversary, PROMPTS, sampling, MATRIX_TOKENS)

    def test_policy(self, smollm2_stack, smollm2_adversary, sampling):
        """Automatic speculation with all of these drafters."""
        check_policy(smollm2_stack, smollm2_adversary, PROMPTS, sampling, 4 * MATRIX_TOKENS)

    def test_killed_drafter(self, mortal_smollm2_stack, sampling):
        """kill -9 in the middle of 20 answers."""
        check_killed_drafter(mortal_smollm2_stack, PROMPTS, sampling, MATRIX_TOKENS)
