"""What a token is worth to a drafter: what was chosen, and what the target thought of choosing."""

import torch

from protos.pairing import fingerprint
from tests.tiny_llama import VOCAB, write_tiny_llama
from tests.training.made_samples import made_sample, record_samples, source_of
from training.dataset import Dataset
from training.target_weights import TargetWeights
from training.token_weights import token_weights

HIDDEN, LAYERS = 64, 4


def weighed(tmp_path, tap_layers):
    """The weights of one conversation, its counts, and its probabilities as they are defined."""
    target_dir = write_tiny_llama(tmp_path / "m", hidden=HIDDEN, layers=LAYERS, seed=1)
    source = source_of(
        HIDDEN,
        tap_layers,
        num_layers=LAYERS,
        vocab_size=VOCAB,
        target_fingerprint=fingerprint(target_dir),
    )
    sample = made_sample("a", 30, 5, width=len(tap_layers) * HIDDEN, vocab=VOCAB)
    recorded = record_samples(tmp_path / "r", [sample], source)
    dataset = Dataset([recorded], held_out=False, max_len=64)
    target = TargetWeights.read(target_dir, source)
    counts_V = dataset.token_counts(VOCAB)
    return token_weights(dataset, target), counts_V, sample, target


def test_thoughts_of_all_answered_tokens_weigh_as_much_as_the_tokens(tmp_path):
    weights_V, counts_V, sample, target = weighed(tmp_path, (2, LAYERS))
    # The state of token i says what comes after it; tokens 5 to 29 were answered.
    final_RW = sample.taps_TX[4:29, HIDDEN:].float()
    normed_RW = torch.nn.functional.rms_norm(final_RW, (HIDDEN,), target.norm_H.float(), target.eps)
    probs_RV = (normed_RW @ target.head_VH.float().T).softmax(-1)
    assert int(counts_V.sum()) == len(final_RW) == 25
    torch.testing.assert_close(weights_V - counts_V, probs_RV.sum(0), rtol=0.05, atol=0.02)


def test_without_thoughts_what_was_chosen_counts(tmp_path):
    weights_V, counts_V, _, _ = weighed(tmp_path, (2, 3))
    assert torch.equal(weights_V, counts_V)
