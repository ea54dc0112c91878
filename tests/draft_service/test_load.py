"""What the service has done is counted, and what it holds is asked of those who hold it."""

from draft_service.batches import Batches
from draft_service.drafters.target_side import TargetSide
from draft_service.kv_pool import KvUsage
from draft_service.load import Load
from draft_service.loader import DrafterSpec
from draft_service.registry import Registry
from protos.pairing import Pairing
from tests.draft_service.noting_drafter import NotingDrafter, following, frame
from tests.tiny_models import write_tiny_eagle3

SIDE = TargetSide(num_layers=8, vocab_size=40, hidden_size=32, max_context_len=64)
TARGET = Pairing(hidden_size=32, vocab_size=40, tap_layers=(2, 4, 5))


def test_batches_and_their_rows_add_up():
    load, batches, drafter = (
        Load(Registry([DrafterSpec("ngram", None)], 64)),
        Batches(),
        NotingDrafter(),
    )
    for _ in range(3):
        for tokens in ([8, 9], [8, 9, 1]):
            batches.arrive(following(drafter), frame(0, tokens), 0)
        load.count(batches.run_next())

    assert (load.batches, load.extended_rows, load.grown_rows) == (3, 15, 12)
    assert load.dropped_for_memory == 0


def test_sessions_that_memory_ended_are_told_from_those_that_broke():
    load, batches = Load(Registry([DrafterSpec("ngram", None)], 64)), Batches()
    drafter = NotingDrafter(num_pages=1)
    for message in (frame(0, [8] * 100), frame(5, [8])):
        batches.arrive(following(drafter), message, 0)
    load.count(batches.run_next())

    assert load.dropped_for_memory == 1


def test_kv_pages_are_those_of_all_drafters(tmp_path):
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    specs = [DrafterSpec("ngram", None), *(DrafterSpec(name, eagle) for name in "ab")]
    registry = Registry(specs, kv_tokens=200)
    load = Load(registry)
    assert load.kv_pages == KvUsage(0, 0)

    registry.load_first(SIDE, TARGET)
    registry.entry("a").loaded.follow(0).reserve(65)

    assert load.kv_pages == KvUsage(2, 8)
