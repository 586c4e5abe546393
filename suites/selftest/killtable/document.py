"""SPEC-KILLS.md, from the outcomes of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kvproof_suites.laws import LAWS
from selftest.killtable.analysis import smallest_set, worth_of_laws
from selftest.killtable.batches import BATCHES
from selftest.killtable.catalogue import Mistake
from selftest.killtable.criteria import CRITERIA, DEFINITIONS
from selftest.killtable.run import Outcome
from selftest.killtable.side_by_side import Compared

Outcomes = Mapping[str, Outcome]
"""By the name that ``--impl`` gives."""

HEAD = """# The kill table

Every wrong implementation of `suites/selftest/wrong/` under every law of the smoke tier, on a CPU. Written by
`{command}`, numbers and all; a test holds the list equal to the catalogue."""

SIDE_BY_SIDE = """## Side by side with fixed tolerances

The wrong kernels made of plain torch, on the data that public kernel tests use: N(0, 1) in bfloat16, 8 query heads,
2 key heads, head dim 128, blocks of 16, finite noise in every slot that nobody owns. `mixed` and `decode` have the
lengths of vLLM's kernel tests (contexts 1,328, 18 and 463 with 1, 5 and 129 queries; contexts 523, 37 and 2,011 with
one), then two sequences of 2,011 tokens and two of 8,195. A kernel that is right there is run again with each option
that it declares. All are given the same float64 reference. *Wrong outputs* are those that the budget or any
criterion rejects; the other kernels answer these batches rightly, or with another rounding, and it takes an exact
law to see what is wrong with them."""

KILLS = """## Who caught whom

✓ marks the law meant for it; the others caught it too."""

WORTH = """## What each law is worth

*Alone* counts the wrong implementations that no other law catches. A law is *covered* when another catches all that
it catches: it earns its place by what its message says, or by bugs that are not in the catalogue yet."""

ROW = re.compile(r"^\| `(\w+\.\w+)` \| [^|]* \| [^|]* \| (✓|✗) (\w+) ", re.MULTILINE)
"""A line of ``KILLS``: label, whether the law meant for it caught it, that law."""


def write(
    mistakes: Sequence[Mistake],
    outcomes: Outcomes,
    right: Sequence[str],
    compared: Mapping[str, Compared],
    others: int | None = None,
) -> str:
    """The whole document; ``right`` are the right implementations of the same run, ``compared`` goes by label, and
    ``others`` is how many tests of each law that was not meant were run at most; None: all."""
    broken = {mistake.label: outcomes[mistake.impl].broken for mistake in mistakes}
    parts = [
        HEAD.format(command="make kill-table" + ("" if others is None else f" OTHERS={others}")),
        counts(mistakes, outcomes, right),
        SIDE_BY_SIDE,
        rejections(compared),
        comparison(mistakes, outcomes, compared),
        KILLS + how_far(others),
        kills(mistakes, outcomes),
        WORTH,
        worth(mistakes, broken),
        few_laws(broken),
    ]
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def counts(mistakes: Sequence[Mistake], outcomes: Outcomes, right: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(mistake.kind for mistake in mistakes))
    of_kind = {kind: [mistake for mistake in mistakes if mistake.kind == kind] for kind in kinds} | {"all": mistakes}
    caught = {mistake.label for mistake in mistakes if outcomes[mistake.impl].broken}
    meant = {mistake.label for mistake in mistakes if mistake.law in outcomes[mistake.impl].broken}
    num_tests = {mistake.label: outcomes[mistake.impl].num_tests for mistake in mistakes}
    rows = [
        ("wrong implementations", *(len(group) for group in of_kind.values())),
        ("caught", *(sum(m.label in caught for m in group) for group in of_kind.values())),
        ("by the law meant for them", *(sum(m.label in meant for m in group) for group in of_kind.values())),
        ("tests that came to a verdict", *(f"{sum(num_tests[m.label] for m in g):,}" for g in of_kind.values())),
    ]
    broken = sum(len(outcomes[name].broken | outcomes[name].errors) for name in right)
    total = sum(outcomes[name].num_tests for name in right)
    listed = ", ".join(f"`{name.rpartition(':')[2]}`" for name in right)
    control = f"Right implementations in the same run ({listed}): {total:,} tests, {broken} laws broken."
    return table(["", *(f"{kind}s" if kind != "all" else kind for kind in of_kind)], rows) + "\n\n" + control


def rejections(compared: Mapping[str, Compared]) -> str:
    wrong = {name: [label for label, found in compared.items() if is_wrong(found, name)] for name in BATCHES}
    header = ["", *(f"{name} ({len(wrong[name])} wrong outputs)" for name in BATCHES)]
    ours = ["**error budget (G1)**", *(sum(compared[k].ratio[name] > 1 for k in wrong[name]) for name in BATCHES)]
    rows = [
        [f"{criterion}: {DEFINITIONS[criterion]}"]
        + [str(sum(name in compared[label].rejected[criterion] for label in wrong[name])) for name in BATCHES]
        for criterion in CRITERIA
    ]
    return "Wrong outputs rejected:\n\n" + table(header, [ours, *rows])


def is_wrong(found: Compared, batch: str) -> bool:
    return found.ratio.get(batch, 0.0) > 1 or any(batch in rejected for rejected in found.rejected.values())


def comparison(mistakes: Sequence[Mistake], outcomes: Outcomes, compared: Mapping[str, Compared]) -> str:
    """One line a kernel: who rejects it on which batch, by the batch's first letter."""
    rows = []
    for mistake in mistakes:
        found = compared.get(mistake.label, Compared())
        if not any(is_wrong(found, name) for name in BATCHES):
            continue
        ours = {name for name in BATCHES if found.ratio.get(name, 0.0) > 1}
        by_law = str(len(outcomes[mistake.impl].broken)) if outcomes[mistake.impl].broken else "none"
        cells = [letters(found, found.rejected[criterion]) for criterion in CRITERIA]
        rows.append([f"`{mistake.name}`", f"{by_law}", letters(found, ours), *cells])
    told = (
        f"Of {len(compared)} wrong kernels {len(rows)} give a wrong output on these data. m, d, 2 and 8 are batches "
        "on which it is rejected, · is one on which it passes, and a blank says that the output is right there. The "
        "second column counts our laws that catch the kernel."
    )
    return told + "\n\n" + table(["wrong kernel", "laws", "budget", *CRITERIA], rows)


def letters(found: Compared, rejected: set[str]) -> str:
    shown = [name[0] if name in rejected else "·" for name in BATCHES if is_wrong(found, name)]
    return "".join(shown)


def kills(mistakes: Sequence[Mistake], outcomes: Outcomes) -> str:
    rank = {law: number for number, law in enumerate(LAWS)}
    rows = []
    for mistake in sorted(mistakes, key=lambda m: (m.kind, rank[m.law], m.label)):
        broken = outcomes[mistake.impl].broken
        others = sorted(broken - {mistake.law}, key=rank.__getitem__)
        mark = "✓" if mistake.law in broken else "✗"
        caught = f"{mark} {mistake.law} {LAWS[mistake.law].title}"
        rows.append([f"`{mistake.label}`", mistake.why, mistake.origin, caught, " ".join(others)])
    return table(["wrong implementation", "what is wrong", "origin", "meant", "caught by as well"], rows)


def how_far(others: int | None) -> str:
    extent = "all tests of the smoke tier" if others is None else f"at least the first {others} tests"
    return (
        f" Of the law that was meant all tests of the smoke tier ran, of each other law {extent}, up to the first that "
        "broke; random programs of the others had 8 examples in place of 25, and of them an interpreted kernel ran the "
        "first 3 tests."
    )


def worth(mistakes: Sequence[Mistake], broken: Mapping[str, set[str]]) -> str:
    meant = [mistake.law for mistake in mistakes]
    rows = []
    for law, found in worth_of_laws(broken).items():
        covered = " ".join(found.covered_by)
        alone = ", ".join(f"`{label.partition('.')[2]}`" for label in found.alone[:4])
        alone += f" and {len(found.alone) - 4} more" if len(found.alone) > 4 else ""
        rows.append((f"{law} {LAWS[law].title}", len(found.kills), meant.count(law), len(found.alone), alone, covered))
    silent = sorted(set(LAWS) - set(worth_of_laws(broken)))
    told = f"\n\nLaws that caught nothing in this run: {', '.join(silent)}." if silent else ""
    return table(["law", "kills", "meant for", "alone", "alone in", "covered by"], rows) + told


def few_laws(broken: Mapping[str, set[str]]) -> str:
    chosen = smallest_set(broken)
    return f"{len(chosen)} laws would catch all of them: {', '.join(chosen)}."
