"""What communication costs in a step, by the profile: the figures behind this layer's predictions."""

from __future__ import annotations

from rsi_tui.journal.facts import ProfileFacts
from rsi_tui.techniques.base import Situation

SECONDS_PER_COLLECTIVE = 4e-4
"""a small all-reduce between two processes of one machine by gloo, its call from Python included"""
BYTES_PER_GRADIENT = 4


def exposed_s(profile: ProfileFacts) -> float:
    """Seconds a step in which a process only waits for others."""
    if profile.communication is not None:
        return min(profile.step_s, profile.communication.exposed_s)
    return profile.step_s * profile.share("communication")


def exchanges(profile: ProfileFacts) -> float:
    """How often a step exchanges all gradients, by the bytes it hands over; 2 where the profile does not tell."""
    comm = profile.communication
    if comm is None or not profile.parameters:
        return 2.0
    return max(1.0, comm.payload_bytes / (BYTES_PER_GRADIENT * profile.parameters))


def latency_s(profile: ProfileFacts) -> float:
    """Seconds a step that go into starting collectives, whatever their size; never more than is exposed."""
    calls = profile.communication.calls if profile.communication is not None else 0.0
    return min(exposed_s(profile), calls * SECONDS_PER_COLLECTIVE)


def link_s(profile: ProfileFacts) -> float:
    """Seconds a step that the bytes need on the link: a ring all-reduce sends 2 (n - 1) / n of them each way."""
    comm = profile.communication
    if comm is None or comm.link_rate is None or comm.world_size < 2:
        return max(0.0, exposed_s(profile) - latency_s(profile))
    return 2 * (comm.world_size - 1) / comm.world_size * comm.payload_bytes / comm.link_rate


def phase_s(profile: ProfileFacts, name: str) -> float:
    """Seconds a step of one phase."""
    return profile.share(name) * profile.step_s


def alone(situation: Situation) -> bool:
    """Whether the profile says that one process trains alone, so that nothing here can help."""
    profile = situation.profile
    if profile is None:
        return False
    return profile.communication.world_size < 2 if profile.communication is not None else False
