"""Text that copies finds prompt lookup by itself, and soon: without a message, without a trial."""

from random import Random

from gateway.experience import Experience
from gateway.plans import CHAINS, NO_LIMIT, walk
from gateway.policy import Wish, policy_for
from gateway.round import Rounds
from protos.messages import DraftTimings, DraftTree, Verdict, VerifyTimings

STEP = VerifyTimings(0, 9_500, 0, 1)
PROMPT_LEN = 50


def experienced():
    """A gateway whose eagle drafter never was right, and whose prompt lookup rarely was."""
    experience = Experience(
        default_drafter="eagle", rivals=("lookup",), kinds={"eagle": "eagle3", "lookup": "ngram"}
    )
    experience.costs.add_plain(10_000.0, STEP)
    plan = CHAINS[-1]
    draft = DraftTree.chain(1, tuple(range(1 + plan.steps)))
    timings = (VerifyTimings(0, 10_500, 0, 8), DraftTimings(0, 30, 60))
    for number in range(100):
        text = draft.tokens if number % 20 == 0 else (0, 9_999)
        experience.acceptance["eagle"].add_none(plan)
        experience.acceptance["lookup"].add(plan, draft, walk(draft, text))
        experience.costs.add_round(plan, "lookup", len(draft.tokens), 11_500, timings)
    return experience


def played_to_drafts(experience, prompt, answer):
    """The rounds of an answer, up to where prompt lookup leads, or to its end."""
    policy = policy_for(Wish("auto", NO_LIMIT), experience, "")
    rounds = Rounds(prompt, policy, vocab_size=10_000, max_new_tokens=len(answer), deadline_s=0.05)
    now = 1.0
    for token in answer:
        if policy.lead == "lookup" and policy.wants_drafter:
            break
        now += 0.01
        verdict = Verdict(rounds.committed_len, (), (token,), (0.0,), timings=STEP)
        rounds.on_verdict(verdict, now)
        rounds.decide()
    return rounds


def plain_tokens_before_drafts(experience, prompt, answer):
    """Tokens of an answer that were decoded plainly before prompt lookup led."""
    return played_to_drafts(experience, prompt, answer).committed_len - len(prompt)


def words(seed, count, first=0):
    random = Random(seed)
    return [random.randrange(first, first + 4000) for _ in range(count)]


def test_a_copy_is_found_within_ten_tokens():
    """Two of them are needed to look anything up, five to believe it."""
    prompt = words(1, PROMPT_LEN)
    own = words(2, 10, first=4000)
    plain = plain_tokens_before_drafts(experienced(), prompt, own + prompt[10:])
    assert len(own) < plain <= len(own) + 10


def test_what_scouts_found_is_used_two_tokens_later():
    """The target stops where it is, but for what may be under way: nobody has to join."""
    prompt = words(1, PROMPT_LEN)
    rounds = played_to_drafts(experienced(), prompt, words(2, 10, first=4000) + prompt[10:])
    assert rounds.run_until == rounds.committed_len + 2


def test_text_that_copies_nothing_is_left_alone():
    answer = words(2, PROMPT_LEN, first=4000)
    assert plain_tokens_before_drafts(experienced(), words(1, PROMPT_LEN), answer) == len(answer)
