"""Training-time test is what serving does: the same guesses from the same inputs, at every step."""

import pytest
import torch

from draft_service.drafters.eagle3_config import Eagle3Config
from protos.messages import SamplingParams
from tests.draft_service.drafters.plain_eagle3 import PlainEagle3
from tests.tiny_models import write_tiny_eagle3
from training.dataset import Batch
from training.draft_module import DraftModule, Norm
from training.objective import Objective
from training.teacher import ChosenTokens
from training.unroll import Keys, unrolled_attention

HIDDEN, VOCAB, LAYERS, STEPS, LENGTH = 32, 50, 8, 5, 9
SWITCHES = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
]


def loaded(directory):
    """Return a checkpoint as the trainer's module, with the tensors that are not its own."""
    plain = PlainEagle3(directory)
    module = DraftModule(Eagle3Config.from_json(plain.config, LAYERS), 64)
    own = {k: v for k, v in plain.w.items() if k in dict(module.named_parameters())}
    module.load_state_dict(own)
    return plain, module


def objective(plain, teacher):
    width = 3 * HIDDEN
    return Objective(
        embedding_VH=plain.w["embed_tokens.weight"],
        teacher=teacher,
        draft_ids_V=torch.arange(VOCAB),
        drafter_columns=torch.arange(width),
        final_columns=torch.empty(0, dtype=torch.long),
        num_steps=STEPS,
        step_decay=0.8,
    )


def chain_of_guesses(plain, tokens, taps):
    """Let the plain drafter go on with a text whose rows but the root's have real taps."""
    h = plain.fuse(taps)
    guesses, logprobs, _ = plain.chain(tokens, h, 0, STEPS, SamplingParams(temperature=0))
    return guesses, logprobs


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_a_chain_that_the_target_follows_is_right_at_every_step(tmp_path, switches):
    """The text goes on as the drafter guesses. Then training must find every step right, and call
    the loss what serving calls the guesses' log-probabilities."""
    directory = write_tiny_eagle3(
        tmp_path / "d", hidden=HIDDEN, vocab=VOCAB, target_layers=LAYERS, **switches
    )
    plain, module = loaded(directory)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=generator).tolist()
    taps = torch.randn(LENGTH - 1, 3 * HIDDEN, generator=generator)
    guesses, logprobs = chain_of_guesses(plain, tokens, taps)
    text = torch.tensor([[*tokens, *guesses]])
    later = torch.randn(len(guesses) + 1, 3 * HIDDEN, generator=generator)
    for step in range(STEPS):
        answered = torch.zeros(1, text.shape[1], dtype=torch.bool)
        # The guess of this step, and so the chain that began behind the last real row.
        answered[0, LENGTH + step] = True
        batch = Batch(text, torch.cat([taps, later])[None], answered)
        with torch.no_grad():
            found = objective(plain, ChosenTokens(VOCAB))(module, batch, STEPS)
        steps = _losses_by_step(module, plain, batch)
        assert steps[step] == pytest.approx(-logprobs[step], abs=0.03)
        assert int(found.started_S[step]) == 1


def _losses_by_step(module, plain, batch):
    """Return the loss of each step by itself: what one step more adds to the sum."""
    sums = []
    for steps in range(1, STEPS + 1):
        with torch.no_grad():
            sums.append(float(objective(plain, ChosenTokens(VOCAB))(module, batch, steps).loss))
    losses = [after - before for before, after in zip([0, *sums], sums, strict=False)]
    return [loss / 0.8**step for step, loss in enumerate(losses)]


def test_taps_of_rows_that_a_chain_guesses_at_do_not_reach_it(tmp_path):
    """At step s a row reads real taps up to s rows before it, and its own guesses behind them."""
    directory = write_tiny_eagle3(tmp_path / "d", hidden=HIDDEN, vocab=VOCAB, target_layers=LAYERS)
    plain, module = loaded(directory)
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(0, VOCAB, (1, LENGTH), generator=generator)
    answered = torch.zeros(1, LENGTH, dtype=torch.bool)
    answered[0, LENGTH - 1] = True
    last_row, losses = LENGTH - 3, []
    taps = torch.randn(1, LENGTH, 3 * HIDDEN, generator=generator)
    for changed in range(last_row + 1):
        other = taps.clone()
        other[0, changed] += 1
        losses.append(_losses_by_step(module, plain, Batch(text, other, answered)))
    unchanged = _losses_by_step(module, plain, Batch(text, taps, answered))
    for step in range(STEPS):
        felt = [abs(loss[step] - unchanged[step]) > 1e-5 for loss in losses]
        assert felt == [row <= last_row - step for row in range(last_row + 1)]


def test_acceptance_counts_chains_that_were_right_so_far(tmp_path):
    """A wrong guess ends its chain: what comes behind it does not count, however right it is."""
    directory = write_tiny_eagle3(tmp_path / "d", hidden=HIDDEN, vocab=VOCAB, target_layers=LAYERS)
    plain, module = loaded(directory)
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(0, VOCAB, (4, 30), generator=generator)
    taps = torch.randn(4, 30, 3 * HIDDEN, generator=generator)
    answered = torch.ones(4, 30, dtype=torch.bool)
    with torch.no_grad():
        found = objective(plain, ChosenTokens(VOCAB))(module, Batch(text, taps, answered), STEPS)
    rates = found.acceptance_S.tolist()
    assert rates == sorted(rates, reverse=True)
    assert found.started_S.tolist() == [4 * (28 - step) for step in range(STEPS)]


def plain_attention(q_BALD, steps):
    """Attention row by row, as it is told in words."""
    real, *guessed = steps
    heads = q_BALD.shape[1] // real.k_BCLD.shape[1]
    rows = []
    for row in range(q_BALD.shape[2]):
        chains = [
            (keys, row - (len(guessed) - step))
            for step, keys in enumerate(guessed, 1)
            if row >= len(guessed) - step
        ]
        seen = range(max(row - len(guessed) + 1, 0))
        k, v = (
            torch.stack(
                [real[i][:, :, at] for at in seen] + [g[i][:, :, at] for g, at in chains], 2
            )
            for i in (0, 1)
        )
        k, v = (x.repeat_interleave(heads, 1) for x in (k, v))
        scores = (q_BALD[:, :, row, None] * k).sum(-1) / q_BALD.shape[-1] ** 0.5
        rows.append((scores.softmax(-1)[..., None] * v).sum(2))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("guesses", [0, 1, 3])
def test_attention_and_its_gradients_are_those_of_rows_by_themselves(guesses):
    generator = torch.Generator().manual_seed(4)
    draw = lambda heads: torch.randn(2, heads, 7, 4, generator=generator).double().requires_grad_()  # noqa: E731
    q, steps = draw(6), [Keys(draw(3), draw(3)) for _ in range(guesses + 1)]
    found, expected = (attend(q, steps) for attend in (unrolled_attention, plain_attention))
    torch.testing.assert_close(found, expected)
    given = [q, *(tensor for keys in steps for tensor in keys)]
    along = torch.randn(found.shape, generator=generator).double()
    grads = [torch.autograd.grad(out, given, along) for out in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_and_its_gradients_are_torchs(dtype):
    generator = torch.Generator().manual_seed(5)
    norm, x = Norm(HIDDEN, 1e-5), torch.randn(3, 7, HIDDEN, generator=generator)
    norm.weight.data.normal_(generator=generator)
    x, along = x.to(dtype).requires_grad_(), torch.randn(x.shape, generator=generator)
    expected = torch.nn.functional.rms_norm(x.float(), (HIDDEN,), norm.weight, 1e-5)
    grads = [
        torch.autograd.grad(out, (x, norm.weight), along.to(out.dtype))
        for out in (norm(x), expected.to(dtype))
    ]
    torch.testing.assert_close(norm(x), expected.to(dtype))
    torch.testing.assert_close(*grads)
