"""What is not the model's text is said to be so, everywhere."""

from __future__ import annotations

import pytest

from protos import gateway_pb2 as pb
from tests.gateway import scripted_drafter as drafters
from tests.gateway.local_gateway import answer, gateway

HONEST = drafters.drafting(drafters.right)


@pytest.mark.parametrize("forced", [None, 2.5])
async def test_every_response_says_whether_it_is_simulated(forced):
    """The target is told what is forced; neither chunks nor statistics pass for the model's."""
    speculation = pb.Speculation(mode=pb.Speculation.MODE_FIXED, forced_accept_length=forced)
    async with gateway(HONEST) as local:
        chunks = await answer(local, speculation=speculation)
        (opened,) = local.target.opened

    assert {chunk.simulated for chunk in chunks} == {forced is not None}
    assert chunks[-1].finish.speculation.simulated is (forced is not None)
    assert opened.HasField("forced_accept_length") is (forced is not None)
    assert opened.forced_accept_length == (forced or 0)
