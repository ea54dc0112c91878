"""A model of target, drafter, network and batch, driven by the gateway's own rounds and policy.

What decides is the real code: `gateway.round`, `gateway.policy`, `draft_service.tree_growth`. What
takes time is modelled: `hardware` says how long, `clock` lets it pass.

    Load, Hardware ──▶ stack: Session ◀── hop ──▶ Target ── hop ──▶ Drafter ── hop ──▶ Session ...
"""
