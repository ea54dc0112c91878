"""What was learned is there after a restart, for that target only; damage is no disaster."""

import asyncio
import json

import pytest

from gateway.experience import Experience
from gateway.experience_file import ExperienceFile, key_of
from gateway.plans import NO_LIMIT
from protos import target_pb2
from protos.speculation_pb2 import Pairing
from tests.gateway.played_world import Player, World


@pytest.fixture
def learned():
    """What some minutes with a good drafter teach."""
    experience = Experience()
    Player(World(), "auto", NO_LIMIT, experience).play(2000)
    return experience


def test_a_restart_begins_with_what_pays(tmp_path, learned):
    file = ExperienceFile(tmp_path / "folder" / "experience.json", "target")
    file.save(learned)

    restarted = file.load()

    assert json.dumps(restarted.costs.state()) == json.dumps(learned.costs.state())
    player = Player(World(), "auto", NO_LIMIT, restarted)
    assert player.rounds.drafters
    assert player.play(200).over_plain() > 1.2


def test_what_was_before_gives_way_when_it_is_no_longer_true(tmp_path, learned):
    """The machine became three times as fast, and drafts do not pay there."""
    file = ExperienceFile(tmp_path / "experience.json", "target")
    file.save(learned)
    world = World(step_us=3_000.0, row_us=1_000.0, grow_us=3_000.0)

    player = Player(world, "auto", NO_LIMIT, file.load())
    player.play(500)

    assert player.play(8000).over_plain() >= 0.98


def test_targets_do_not_share_what_was_learned(tmp_path, learned):
    path = tmp_path / "experience.json"
    ExperienceFile(path, "one").save(learned)

    assert not ExperienceFile(path, "other").load().costs.knows_plain

    ExperienceFile(path, "other").save(Experience())
    assert ExperienceFile(path, "one").load().costs.knows_plain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 99, "targets": {}}',
        '{"format": 1, "targets": {"target": {}}}',
        '{"format": 1, "targets": {"target": {"costs": 3}}}',
        '{"format": 1, "targets": {"target": null}}',
    ],
)
def test_a_damaged_file_is_as_none_and_is_written_anew(tmp_path, learned, text):
    file = ExperienceFile(tmp_path / "experience.json", "target")
    file.path.write_text(text)

    assert not file.load().costs.knows_plain
    file.save(learned)
    assert file.load().costs.knows_plain


async def test_it_is_saved_when_the_gateway_stops(tmp_path, learned):
    file = ExperienceFile(tmp_path / "experience.json", "target")
    keeping = asyncio.create_task(file.keep(learned))
    await asyncio.sleep(0)
    assert not file.path.exists()

    keeping.cancel()
    await asyncio.wait([keeping])

    assert file.load().costs.knows_plain


async def test_a_file_that_cannot_be_written_stops_nothing(tmp_path, learned):
    (tmp_path / "file").write_text("in the way")
    file = ExperienceFile(tmp_path / "file" / "experience.json", "target")
    keeping = asyncio.create_task(file.keep(learned))
    await asyncio.sleep(0)

    keeping.cancel()
    await asyncio.wait([keeping])

    assert keeping.cancelled()


def test_costs_belong_to_a_model_its_weights_and_what_computes():
    target = target_pb2.GetTargetResponse(
        pairing=Pairing(target_fingerprint="f"), weights="int8", kernels="native", device="cpu"
    )
    keys = {key_of(target)}
    for field in ("weights", "kernels", "device"):
        other = target_pb2.GetTargetResponse()
        other.CopyFrom(target)
        setattr(other, field, "other")
        keys.add(key_of(other))
    target.pairing.target_fingerprint = "g"
    keys.add(key_of(target))

    assert len(keys) == 5
