"""What a draft service says of its drafters: `ListDrafters`."""

from __future__ import annotations

from draft_service.load import Load
from draft_service.registry import Canary, Registered, Registry
from draft_service.scorecard import Scorecard
from draft_service.shadow import Shadow
from draft_service.standings import Standings
from draft_service.trial import PromotionRule
from kernels.kv_pages import PAGE_LEN
from protos import draft_pb2 as pb


def listing(registry: Registry, standings: Standings, load: Load) -> pb.ListDraftersResponse:
    """Return all there is to know."""
    canary, shadow = registry.canary, standings.shadow
    return pb.ListDraftersResponse(
        drafters=[_drafter(entry) for entry in registry.all],
        default_drafter_id=registry.default_id,
        load=_load(load),
        canary=_canary(canary) if canary else None,
        shadow=_shadow(shadow) if shadow else None,
    )


def _drafter(entry: Registered) -> pb.DrafterInfo:
    drafter = entry.drafter
    return pb.DrafterInfo(
        drafter_id=entry.drafter_id,
        kind=drafter.kind if drafter else "",
        pairing=drafter.pairing.to_proto() if drafter else None,
        refusal=entry.refusal,
        state=entry.state,
        sessions=len(entry.outboxes),
        score=_score(entry.scorecard),
    )


def _score(card: Scorecard) -> pb.DrafterScore:
    low, high = card.interval()
    return pb.DrafterScore(
        rounds=card.rounds,
        drafted_rounds=card.drafted_rounds,
        accepted=card.accepted,
        accepted_by_position=card.accepted_by_position,
        accept_length=card.accept_length,
        accept_length_low=low,
        accept_length_high=high,
        scored_sessions=card.num_sessions,
    )


def _canary(canary: Canary) -> pb.Canary:
    return pb.Canary(drafter_id=canary.drafter_id, share=canary.share)


def _shadow(shadow: Shadow) -> pb.Shadow:
    trial = shadow.trial
    low, high = trial.gain_interval()
    return pb.Shadow(
        candidate_id=shadow.candidate.drafter_id,
        incumbent_id=shadow.incumbent_id,
        share=shadow.share,
        promote_if=_rule(shadow.rule) if shadow.rule else None,
        running=shadow.running,
        outcome=shadow.outcome,
        sessions=len(shadow.members),
        dropped_sessions=shadow.dropped,
        rounds=trial.rounds,
        candidate_accept_length=trial.candidate.value,
        incumbent_accept_length=trial.incumbent.value,
        gain=trial.gain,
        gain_low=low,
        gain_high=high,
    )


def _rule(rule: PromotionRule) -> pb.PromotionRule:
    return pb.PromotionRule(
        better_by=rule.better_by, confidence=rule.confidence, max_rounds=rule.max_rounds
    )


def _load(load: Load) -> pb.DraftLoad:
    pages = load.kv_pages
    return pb.DraftLoad(
        sessions=load.sessions,
        tap_subscriptions=load.tap_subscriptions,
        kv_tokens_reserved=pages.used * PAGE_LEN,
        kv_tokens_total=pages.total * PAGE_LEN,
        batches=load.batches,
        extended_rows=load.extended_rows,
        grown_rows=load.grown_rows,
        dropped_for_memory=load.dropped_for_memory,
    )
