"""What goes out of the gateway for a round: its tokens and text, and in the end what it took."""

from __future__ import annotations

from gateway.answer import Finish
from gateway.sampling_params import Generation
from gateway.session import Committed, RoundTimings, Session
from protos import gateway_pb2 as pb

_REASONS = {
    "stop": pb.FinishInfo.REASON_STOP,
    "length": pb.FinishInfo.REASON_LENGTH,
}


def chunk_response(generation: Generation, committed: Committed) -> pb.GenerateResponse:
    """Return what one verdict added to the answer."""
    chunk, accepted = committed.chunk, committed.accepted
    return pb.GenerateResponse(
        request_id=generation.request_id,
        token_ids=chunk.token_ids,
        text=chunk.text,
        logprobs=chunk.logprobs,
        top_logprobs=[top.to_proto() for top in chunk.top_logprobs],
        accepted_tokens=accepted,
        accepted_text_len=len("".join(chunk.texts[:accepted])),
        timings=_timings(committed.timings) if committed.timings else None,
        simulated=generation.simulated,
    )


def _timings(timings: RoundTimings) -> pb.RoundTimings:
    return pb.RoundTimings(
        round_us=timings.round_us,
        verify=timings.verify.to_proto(),
        draft=timings.draft.to_proto(),
    )


def prompt_info(generation: Generation) -> pb.PromptInfo:
    """Return what is said in the first chunk alone."""
    return pb.PromptInfo(token_ids=generation.prompt, seed=generation.sampling.seed)


def finish_info(
    generation: Generation, finish: Finish, session: Session, elapsed_ns: tuple[int, int]
) -> pb.FinishInfo:
    """Return what is said in the last chunk alone.

    `elapsed_ns`: to the first chunk, and from there to the last.
    """
    usage = pb.Usage(
        prompt_tokens=len(generation.prompt),
        completion_tokens=session.num_tokens,
        cached_prompt_tokens=session.cached_prompt_tokens,
    )
    return pb.FinishInfo(
        reason=_REASONS[finish.reason],
        stop_token_id=finish.stop_token_id,
        stop_string=finish.stop_string,
        usage=usage,
        speculation=_statistics(generation, session, elapsed_ns),
    )


def _statistics(
    generation: Generation, session: Session, elapsed_ns: tuple[int, int]
) -> pb.SpeculationStats:
    statistics = session.statistics
    return pb.SpeculationStats(
        rounds=statistics.rounds,
        drafted=statistics.drafted,
        accepted=statistics.accepted,
        accept_length=statistics.accept_length,
        accepted_by_position=statistics.accepted_by_position,
        missed=statistics.missed,
        drafter_id=statistics.drafter_id,
        time_to_first_token_us=elapsed_ns[0] // 1000,
        decode_us=elapsed_ns[1] // 1000,
        verify=statistics.verify.to_proto(),
        draft=statistics.draft.to_proto(),
        drafter_trouble=statistics.trouble,
        plans=[
            pb.PlanUse(plan=plan.to_proto(), rounds=rounds)
            for plan, rounds in statistics.rounds_by_plan.most_common()
        ],
        simulated=generation.simulated,
    )
