"""When the completions of a rollout are better sampled by a served engine than in place.

An engine that is ``s`` times as fast takes 1 / s of the time of the rollout in place, but the new weights must be sent
to it after each update that a rollout follows. So it pays if in_place / s + sending < in_place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceRollout:
    """The rollout of one device.

    Attributes:
        completions: that it samples, one after another or together.
        forwards: of the sampler for one completion.
        seconds_per_forward: of one completion in place, that is, of a pass divided by the completions in it.
        weight_bytes: that are sent to the engine for each rollout.
        bandwidth: bytes per second.
    """

    completions: float
    forwards: float
    seconds_per_forward: float
    weight_bytes: float
    bandwidth: float

    @property
    def in_place(self) -> float:
        """Seconds in place."""
        return self.completions * self.forwards * self.seconds_per_forward

    @property
    def sending(self) -> float:
        """Seconds for the weights."""
        return self.weight_bytes / self.bandwidth

    def served(self, speedup: float) -> float:
        """Seconds by an engine that is ``speedup`` times as fast, the weights included."""
        return self.in_place / speedup + self.sending

    @property
    def pays_from(self) -> float | None:
        """The speed-up from which an engine pays; None: sending alone takes longer than the rollout in place."""
        return self.in_place / (self.in_place - self.sending) if self.in_place > self.sending else None

    def completions_from(self, speedup: float) -> float | None:
        """The number of completions from which an engine of this speed-up pays; None: never."""
        saved = self.forwards * self.seconds_per_forward * (1 - 1 / speedup)
        return self.sending / saved if saved > 0 else None
