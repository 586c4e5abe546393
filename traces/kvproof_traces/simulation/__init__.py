"""Continuous batching, simulated by counting blocks: no allocator, no token ids, in constant memory.

``simulate(requests, Pool(...), Scheduler(...), step_time=None) -> Simulation``. Where ``replay`` drives a real
allocator, this says what a policy would do to a million requests in a minute.
"""

from kvproof_traces.simulation.branches import in_beams, in_parallel
from kvproof_traces.simulation.result import Percentiles, Simulation
from kvproof_traces.simulation.settings import ADMISSIONS, POLICIES, PREEMPTIONS, Pool, Scheduler
from kvproof_traces.simulation.simulate import simulate
from kvproof_traces.simulation.step_time import GPUS, Gpu, Roofline

__all__ = [
    "ADMISSIONS",
    "GPUS",
    "POLICIES",
    "PREEMPTIONS",
    "Gpu",
    "Percentiles",
    "Pool",
    "Roofline",
    "Scheduler",
    "Simulation",
    "in_beams",
    "in_parallel",
    "simulate",
]
