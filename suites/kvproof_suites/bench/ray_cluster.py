"""An existing Ray cluster: whether it answers, and calls that are spread over its machines. All that is Ray's is here.

A call has a machine to itself, or a GPU with its share of the machine's cores, in a process of its own: side by side
two benchmarks would time each other. What a lost process or machine took with it is called again elsewhere.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvproof_reports.extras import MissingExtra, need

SECONDS_TO_ANSWER = 20
MOST_TRIES = 3

QUIETLY = {"log_to_driver": False, "logging_level": "ERROR"}
PROBE = f"""
import json, sys, ray
try:
    ray.init(address=sys.argv[1], **{QUIETLY})
    print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
except Exception as error:
    sys.exit(" ".join(str(error).split()))
"""

Answer = Mapping[str, Any]
"""Of a call: what it gave back, or {"failed": why}."""


class ClusterError(ValueError):
    """A cluster that nothing can be spread over. The text says why, and what to do."""


def resources_of_call(address: str, device: str) -> dict[str, int]:
    """What Ray is asked for, for each call.

    Raises:
        ClusterError: Ray is not installed, nothing answers there in time, or no machine has such a device to give.
    """
    if ":" in device:
        raise ClusterError(f"--ray gives each process a device of its own: leave the number out of --device={device}")
    try:
        need("ray", "ray")
    except MissingExtra as error:
        raise ClusterError(f"--ray {error}") from None
    machines = _machines(address)
    if device == "cuda":
        shares = [int(one.get("CPU", 0) // one["GPU"]) for one in machines if one.get("GPU", 0) >= 1]
        needed = {"num_gpus": 1, "num_cpus": max(1, min(shares))} if shares else {}
    else:
        most = int(max((one.get("CPU", 0) for one in machines), default=0))
        needed = {"num_cpus": most} if most else {}
    if not needed:
        raise ClusterError(f"--ray: no machine of {address} has a {device} device to give; name another --device")
    return needed


def _machines(address: str) -> list[dict[str, float]]:
    """The resources of each, asked for by another process: Ray tries for minutes, and can't be interrupted."""
    if address in ("", "local"):
        raise ClusterError("--ray: give the address of a cluster that runs: HOST:PORT, ray://HOST:PORT or auto")
    _require_open(address)
    command = [sys.executable, "-c", PROBE, address]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"--ray: no Ray cluster answered at {address} in {SECONDS_TO_ANSWER} s") from None
    if told.returncode:
        why = told.stderr.strip().splitlines()[-1:] or [f"the probe ended with {told.returncode}"]
        raise ClusterError(f"--ray: {address}: {why[0]}")
    machines: list[dict[str, float]] = json.loads(told.stdout.splitlines()[-1])
    return machines


def _require_open(address: str) -> None:
    """The commonest mistake, an address where nothing listens, is told at once."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER / 2).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ClusterError(
            f"--ray: {address}: {why}; `ray status` on a machine of the cluster tells its address"
        ) from None


def spread(
    address: str,
    call: Callable[[Any, Sequence[str]], Answer],
    shared: Any,
    calls: Sequence[Sequence[str]],
    **needed: int,
) -> Iterator[tuple[int, int, Answer]]:
    """``call(shared, one)`` for each of ``calls``, anywhere in the cluster, as often as it takes, at most MOST_TRIES.

    Yields (place in ``calls``, number of the try, answer) as they come; an answer of a process that was lost, or that
    raised, is {"failed": why}, and one that came has the "node" that gave it.
    """
    ray = need("ray", "ray")
    ray.init(address=address, **QUIETLY)
    try:
        remote = ray.remote(max_retries=0, max_calls=1, scheduling_strategy="SPREAD", **needed)(_on_a_node)
        sent = ray.put(shared)
        running = {remote.remote(call, sent, one): (place, 1) for place, one in enumerate(calls)}
        while running:
            (ended, *_), _ = ray.wait(list(running))
            place, number = running.pop(ended)
            try:
                answer = ray.get(ended)
            except ray.exceptions.RayError as error:
                answer = {"failed": _in_a_line(error)}
            if "failed" in answer and number < MOST_TRIES:
                running[remote.remote(call, sent, calls[place])] = (place, number + 1)
            yield place, number, answer
    finally:
        ray.shutdown()


def _on_a_node(call: Callable[[Any, Sequence[str]], Answer], shared: Any, one: Sequence[str]) -> Answer:
    node: str = need("ray", "ray").get_runtime_context().get_node_id()
    return {**call(shared, one), "node": node}


def _in_a_line(error: Exception) -> str:
    """What was raised there, or the first sentence of what Ray has to say, which goes on about its logs."""
    if cause := getattr(error, "cause", None):
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    return str(error).strip().partition("\n")[0].partition(". ")[0]
