"""What a failed test leaves in the run's folder: a script for a kernel, a history for an allocator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof_suites.allocator.history import HISTORY
from kvproof_suites.failures import headline, indent
from kvproof_suites.kernel.attend import arithmetic
from kvproof_suites.outcome import Element
from kvproof_suites.repro.evidence import by_oracle, judged_launch
from kvproof_suites.repro.recorder import Call, Copied, Launched, RecordedKernel, Written
from kvproof_suites.repro.script import Failure, render
from kvproof_suites.select import implementation_of, law_of
from kvproof_suites.under_test import KernelUnderTest

MAX_BYTES = 4_000_000
"""Of a script; of a longer one only the launch that was judged is kept."""

NO_SCRIPT = "what is wrong shows in no single launch"


def keep(
    item: pytest.Item,
    error: BaseException,
    kernel: RecordedKernel | None,
    version: str | None,
    device: str,
    folder: Path,
) -> list[str]:
    """Write what repeats the failure; lines that say where it is, or why there is nothing.

    Telling of a failure must not become one: whatever goes wrong here is told in its place.
    """
    try:
        history = getattr(error, "history", None) or item.stash.get(HISTORY, None)
        if history is not None:
            path = write(folder, item, "jsonl", history.text())
            return [f"history: {path}", f"replay:  kvproof replay {path} --allocator {implementation_of(item)}"]
        if kernel is None or not kernel.calls:
            return []
        under_test = KernelUnderTest(str(implementation_of(item)), kernel, device)
        failure = failure_of(item, error, under_test, version)
        return [
            f"script:  {write(folder, item, 'py', within_limit(failure))}" if failure else f"script:  none; {NO_SCRIPT}"
        ]
    except Exception as fault:
        return [f"script:  none; writing it failed with {type(fault).__name__}: {fault}"]


def write(folder: Path, item: pytest.Item, suffix: str, text: str) -> Path:
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]
    file = Path(f"{law_of(item)}-{name}.{suffix}").name  # a test of somebody's own may call its law as it likes
    path = folder / "repro" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def failure_of(
    item: pytest.Item, error: BaseException, under_test: KernelUnderTest, version: str | None
) -> Failure | None:
    """What the script has to show, or None when no call of the test shows it."""
    kernel: Any = under_test.kernel
    calls, law = list(kernel.calls), law_of(item) or ""
    found = evidence(calls, error, under_test)
    if found is None:
        return None
    elements, same_bits = found
    judged = judged_launch(calls, elements)
    return Failure(
        title=f"{law}: {type(error).__name__}" if not isinstance(error, AssertionError) else headline(law),
        story=indent(str(error) or type(error).__name__),
        implementation=under_test.name,
        version=version,
        device=under_test.device,
        calls=calls,
        elements=elements,
        judged=judged,
        same_bits=same_bits,
    )


def evidence(
    calls: Sequence[Call], error: BaseException, under_test: KernelUnderTest
) -> tuple[Sequence[Element], bool] | None:
    """(wrong elements, whether two launches must agree); both empty where the calls alone show the failure."""
    launches = [call for call in calls if isinstance(call, Launched)]
    if elements := getattr(error, "elements", ()):
        return elements, False
    num_rows = getattr(error, "same_bits", 0)
    if num_rows and [call.plan.batch.num_tokens for call in launches[-2:]] == [num_rows] * 2:
        return (), True
    if calls[-1].raised is not None or isinstance(calls[-1], Written | Copied) or misshapen(launches):
        return (), False
    elements = by_oracle(launches[-1], arithmetic(under_test, launches[-1].plan.spec)) if launches else []
    return (elements, False) if elements else None


def misshapen(launches: Sequence[Launched]) -> bool:
    if not launches or launches[-1].result is None:
        return False
    last = launches[-1]
    out = last.result[0] if isinstance(last.result, tuple | list) else last.result
    spec, num_tokens = last.plan.spec, last.plan.batch.num_tokens
    return tuple(out.shape) != (num_tokens, spec.num_q_heads, spec.value_dim_value) or out.dtype != last.query.dtype


def within_limit(failure: Failure) -> str:
    """The script, from the judged launch alone when all calls together are too long.

    Raises:
        ValueError: it is too long even so.
    """
    script = render(failure)
    if len(script) > MAX_BYTES and not failure.same_bits:
        launches = [call for call in failure.calls if isinstance(call, Launched)]
        script = render(replace(failure, calls=[launches[failure.judged]], judged=0))
    if len(script) > MAX_BYTES:
        raise ValueError(f"the tensors take {len(script):,} characters, more than {MAX_BYTES:,}")
    return script
