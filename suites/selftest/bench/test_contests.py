"""A contest times all its rows when the first is asked for, and tells each what became of it."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from kvproof_suites.bench.cells import HostCell
from kvproof_suites.bench.clocks import HostClock
from kvproof_suites.bench.comparison import Cost, breakeven_launches
from kvproof_suites.bench.contests import Contests, NotTimed, Ready, Timed, by_contest, entrant_of
from kvproof_suites.bench.race import Contestant


@dataclass
class Preparation:
    log: list

    def prepare(self, entrants):
        for name, cell in entrants:
            self.log.append(f"prepare {name}")
            if name == "refuses":
                yield (name, cell), NotTimed("not today")
            else:
                call = self.fail if name == "fails" else lambda given, name=name: self.log.append(f"run {name}")
                yield (name, cell), Ready(Contestant(call, [None]), lambda timings: {"rows": len(timings)})

    def fail(self, given):
        raise RuntimeError("out of registers")


CELL, OTHER = HostCell("group", "free", 16, 4), HostCell("group", "free", 32, 4)


@pytest.fixture
def log():
    return []


@pytest.fixture
def contests(log):
    return Contests({"group": Preparation(log)}, lambda group: HostClock(), lambda: None, seconds=0.0, seed=0)


def test_rows_of_one_contest_are_timed_together_and_once(contests, log):
    entrants = [("a", CELL), ("b", CELL), ("c", OTHER)]
    first, second = contests.result(("a", CELL), entrants), contests.result(("b", CELL), entrants)
    assert isinstance(first, Timed)
    assert (first.figures, second.figures) == ({"rows": 2}, {"rows": 2})
    assert log[:2] == ["prepare a", "prepare b"]
    assert log.count("prepare a") == 1
    assert "prepare c" not in log
    assert log.index("run b") < len(log) - 1 - log[::-1].index("run a"), "they took turns"


def test_launches_are_planned_and_timed_on_as_many_threads_as_asked_for(contests):
    class Threads:
        def prepare(self, entrants):
            seen.append(torch.get_num_threads())
            call = lambda given: seen.append(torch.get_num_threads())  # noqa: E731
            yield entrants[0], Ready(Contestant(call, [None]), lambda timings: {})

    seen = []
    alone = replace(contests, preparations={"group": Threads()}, threads=1)
    alone.result(("a", CELL), [("a", CELL)])
    assert len(seen) > 2
    assert set(seen) == {1}


def test_each_row_is_told_what_became_of_it(contests):
    entrants = [(name, CELL) for name in ("a", "refuses", "fails")]
    assert contests.result(("refuses", CELL), entrants) == NotTimed("not today")
    assert isinstance(contests.result(("a", CELL), entrants), Timed)
    with pytest.raises(RuntimeError, match="out of registers"):
        contests.result(("fails", CELL), entrants)


def item(name, cell=None, **params):
    given = {"kernel": name, **params} | ({"cell": cell} if cell else {})
    return SimpleNamespace(callspec=SimpleNamespace(params=given))


def test_tests_of_one_contest_lie_together_and_all_others_stay_in_order():
    law_1, law_2 = item("a"), SimpleNamespace()
    items = [law_1, item("a", CELL), item("a", OTHER), law_2, item("b", CELL), item("b", OTHER)]
    assert by_contest(items) == [law_1, law_2, items[1], items[4], items[2], items[5]]
    assert entrant_of(items[4]) == ("b", CELL)
    assert entrant_of(law_2) is None


@pytest.mark.parametrize(
    ("own", "others", "launches"),
    [
        (Cost(1.0, 0.1), {"b": Cost(0.0, 0.2)}, 10),
        (Cost(1.05, 0.1), {"b": Cost(0.0, 0.2)}, 11),
        (Cost(1.0, 0.1), {"b": Cost(0.0, 0.2), "c": Cost(0.0, 5.0)}, 10),
        (Cost(0.0, 0.2), {"b": Cost(1.0, 0.1)}, 1),
        (Cost(1.0, 0.2), {"b": Cost(0.0, 0.1)}, None),
        (Cost(1.0, 0.2), {}, None),
    ],
)
def test_a_plan_pays_from_the_launch_at_which_it_is_no_dearer_than_the_cheapest_first_launch(own, others, launches):
    assert breakeven_launches(own, others) == launches
    if launches and launches > 1:
        cheapest = min(others.values(), key=lambda cost: cost.of(1))
        assert own.of(launches) <= cheapest.of(launches) + 1e-12
        assert own.of(launches - 1) > cheapest.of(launches - 1)
