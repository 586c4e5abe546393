"""``python -m kvproof_impls NAME``: load an implementation and print what it provides as JSON, or why it can't be used.

It answers for an interpreter that is not one's own, and it is not missed when it dies.
"""

from __future__ import annotations

import json
import sys

from kvproof_impls.registry import ImplementationError, load


def describe(name: str) -> dict[str, str | None]:
    try:
        found = load(name)
    except ImplementationError as error:
        return {"error": str(error)}
    return {"provides": found.provides, "version": found.version}


if __name__ == "__main__":
    answer = describe(sys.argv[1])  # what an import prints goes before it
    print(f"\n{json.dumps(answer)}")
