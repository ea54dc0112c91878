"""What to load is said in one way; what does not fit memory is refused before it is read."""

from pathlib import Path

import pytest

from draft_service.drafters.target_side import TargetSide
from draft_service.loader import DrafterRefusedError, DrafterSpec, Loader
from draft_service.memory import available_bytes, check_memory
from protos.pairing import Pairing
from tests.tiny_models import FILE, write_tiny_eagle3

SIDE = TargetSide(num_layers=8, vocab_size=40, hidden_size=32, max_context_len=64)
TARGET = Pairing(hidden_size=32, vocab_size=40, tap_layers=(2, 4, 5))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ngram", DrafterSpec("ngram", None)),
        ("eagle=/models/e", DrafterSpec("eagle", Path("/models/e"))),
        ("ngram=/models/e", DrafterSpec("ngram", Path("/models/e"))),
        ("a=b=c", DrafterSpec("a", Path("b=c"))),
    ],
)
def test_a_drafter_is_ngram_or_an_id_and_a_directory(text, spec):
    assert DrafterSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("eagle", "must be ID=DIRECTORY or one of ngram.*, got 'eagle'"),
        ("/models/e", "drafter must be 1 to 64 .*got '/models/e'"),
        ("", "drafter must be 1 to 64 .*got ''"),
        ("=/models/e", "drafter must be 1 to 64 .*got ''"),
        ("a b=/models/e", "drafter must be 1 to 64 .*got 'a b'"),
        # Not the current directory.
        ("eagle=", "must be ID=DIRECTORY or one of ngram.*, got 'eagle='"),
        ("ngram=", "must be ID=DIRECTORY or one of ngram.*, got 'ngram='"),
    ],
)
def test_anything_else_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        DrafterSpec.parse(text)


def test_a_drafter_without_room_is_refused_with_both_numbers(tmp_path):
    """Weights and KV cache: 2 * 2 heads of 8 float32 a token."""
    path = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    needed = (path / FILE).stat().st_size + 2**20 * 2 * 2 * 8 * 4

    check_memory(path, kv_tokens=2**20, free_bytes=needed)
    with pytest.raises(ValueError, match=r"needs 128 MiB .*for 1048576 tokens.*127 MiB are avail"):
        check_memory(path, kv_tokens=2**20, free_bytes=needed - 2**20)


def test_what_no_machine_has_is_refused_by_the_loader(tmp_path):
    path = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)

    with pytest.raises(DrafterRefusedError, match=r"it needs \d+ MiB of memory .* are available"):
        Loader(SIDE, TARGET, kv_tokens=2**50).load(DrafterSpec("eagle", path))
    assert available_bytes() > 0
