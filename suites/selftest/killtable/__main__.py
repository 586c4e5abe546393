"""``python -m selftest.killtable``: judge every wrong implementation and write SPEC-KILLS.md.

Ends with 1 when one of them survives the law meant for it, or a right one breaks a law.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from selftest.killtable.catalogue import Mistake, discover
from selftest.killtable.document import Outcomes, write
from selftest.killtable.first_break import OTHERS
from selftest.killtable.run import judge_all
from selftest.killtable.side_by_side import compare, right_base

ROOT = Path(__file__).parents[3]
RIGHT = ("selftest.wrong.right_kernel:RightKernel", "torch", "paged", "contiguous-max")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m selftest.killtable", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--records", type=Path, default=ROOT / "results" / "kill-table", help="folder for the records")
    parser.add_argument("--out", type=Path, default=ROOT / "SPEC-KILLS.md")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run has recorded")
    parser.add_argument("--others", type=int, metavar="N", help="tests of each law not meant for it; default: all")
    asked = parser.parse_args()
    if asked.others is not None:
        os.environ[OTHERS] = str(asked.others)
    mistakes = discover()
    if not asked.resume:
        shutil.rmtree(asked.records, ignore_errors=True)
    outcomes = judge_all([*RIGHT, *(mistake.impl for mistake in mistakes)], asked.records, asked.processes)
    compared = {m.label: compare(m.factory) for m in mistakes if right_base(m.factory)}
    asked.out.write_text(write(mistakes, outcomes, RIGHT, compared, asked.others), encoding="utf-8")
    return report(mistakes, outcomes)


def report(mistakes: list[Mistake], outcomes: Outcomes) -> int:
    survivors = [mistake for mistake in mistakes if mistake.law not in outcomes[mistake.impl].broken]
    for mistake in survivors:
        by = ", ".join(sorted(outcomes[mistake.impl].broken)) or "nothing"
        print(f"{mistake.label} survives {mistake.law}, the law meant for it; caught by {by}")
    wronged = {name: outcomes[name].broken | outcomes[name].errors for name in RIGHT}
    for name, laws in wronged.items():
        print(f"{name} is right and " + (f"breaks {', '.join(sorted(laws))}" if laws else "breaks nothing"))
    print(f"{len(mistakes)} wrong implementations, {len(mistakes) - len(survivors)} caught by the law meant for them")
    return int(bool(survivors) or any(wronged.values()))


if __name__ == "__main__":
    sys.exit(main())
