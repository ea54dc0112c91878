"""When a session's scouts are out. Sans-I/O."""

from __future__ import annotations

from gateway.experience import Experience

# In the first tokens of a session, and in some of every so many later.
_FIRST = 24
_SOME = 12
_EVERY = 64


class Scouting:
    """Times of scouting. Under load one session at a time has one."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self.is_on = False

    def look_at(self, num_tokens: int) -> None:
        """Begin or end one, after so many tokens of the session."""
        due = num_tokens < _FIRST or num_tokens % _EVERY < _SOME
        room = self._experience.scouting == 0 or not self._experience.is_busy
        if due != self.is_on and (room or not due):
            self._turn(due)

    def end(self) -> None:
        """The session is over."""
        if self.is_on:
            self._turn(False)

    def _turn(self, on: bool) -> None:
        self.is_on = on
        self._experience.scouting += 1 if on else -1
