"""What counts as conforming, and which record counts."""

import pytest

from kvproof_reports.records import Run, read_run
from kvproof_reports.verdict import counts, judged, matrix, not_verified, notes, subjects, verdict


def laws(*outcomes):
    return counts([{"outcome": outcome} for outcome in outcomes])


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["verified", "refused", "not_run"], "conforms"),
        (["verified", "broken", "error"], "broken"),
        (["verified", "error", "known_broken"], "not settled"),
        (["verified", "known_broken"], "broken as declared"),
        (["refused", "not_run"], "nothing verified"),
        ([], "nothing verified"),
    ],
)
def test_the_verdict_is_the_worst_that_was_found(outcomes, expected):
    assert verdict(laws(*outcomes)) == expected


def test_each_implementation_is_judged_by_its_own_laws(build):
    found = {subject.name: subject for subject in subjects([read_run(build("a").everything())])}

    assert {name: subject.verdict for name, subject in found.items()} == {
        "torch": "conforms",
        "triton": "broken",
        "paged": "broken as declared",
        "contiguous": "nothing verified",
    }
    assert found["torch"].counts["verified"] == 4
    assert found["triton"].broken_laws == ["G18"]


def test_who_was_only_replayed_has_no_verdict(build):
    run = build("a")
    run.session()
    run.replay("an allocator beside")

    columns = subjects([read_run(run.writer.folder)])

    assert "an allocator beside" in [subject.name for subject in columns]
    assert "an allocator beside" not in [subject.name for subject in judged(columns)]
    assert "contiguous" in [subject.name for subject in judged(columns)]  # was to be judged, and nothing came of it


def test_a_test_run_again_in_the_same_run_is_judged_by_its_last_result(build):
    run = build("a")
    run.law("G18", "triton", "broken", reason="read twice")
    run.law("G18", "triton")

    (triton,) = subjects([read_run(run.writer.folder)])

    assert (triton.verdict, triton.counts["broken"]) == ("conforms", 0)


def test_the_matrix_has_the_worst_outcome_of_each_law_and_no_cell_where_none_ran(build):
    rows = matrix(subjects([read_run(build("a").everything())]))

    assert [row.law for row in rows] == ["A04", "G01", "G18"]
    assert {label: cell.outcome for label, cell in rows[2].cells.items()} == {"torch": "verified", "triton": "broken"}
    assert rows[2].cells["triton"].error_to_bound == 37.5
    assert rows[1].cells["torch"].counts["verified"] == 2


def test_names_are_told_apart_by_run_only_where_they_clash(build):
    first, second = build("a"), build("b")
    first.law("G01", "torch")
    first.law("G01", "triton")
    second.law("G01", "torch")
    runs = [read_run(first.writer.folder), read_run(second.writer.folder)]

    assert [subject.label for subject in subjects(runs)] == ["torch @ a", "triton", "torch @ b"]
    assert [subject.label for subject in subjects([runs[0], runs[0]])] == ["torch", "triton"]


def test_two_folders_of_one_run_id_stay_two_runs(build):
    first, second = build("x/a"), build("y/a")
    for run in (first, second):
        run.law("G01", "torch")
    runs = [read_run(first.writer.folder), read_run(second.writer.folder)]

    assert [subject.label for subject in subjects(runs)] == ["torch @ a", "torch @ a (2)"]


def test_what_was_not_verified_is_told_once_a_reason(build):
    run = build("a")
    for test in ("x", "y"):
        run.law("G01", "torch", "refused", test=test, reason="no fp8")
    run.law("G18", "torch", "not_run", reason="needs CUDA")

    (torch,) = subjects([read_run(run.writer.folder)])

    assert not_verified(torch) == [("refused", "no fp8", 2), ("not_run", "needs CUDA", 1)]


def test_an_unavailable_implementation_has_its_reason_though_nothing_ran(build):
    run = build("a")
    run.session(implementations=[{"name": "flash-attn", "unavailable": "needs a CUDA device"}])

    (subject,) = subjects([read_run(run.writer.folder)])

    assert subject.verdict == "not available"
    assert not_verified(subject) == [("not_run", "needs a CUDA device", 0)]


def test_a_run_that_never_ended_says_so(build):
    ended, killed = build("ended"), build("killed")
    ended.everything()
    killed.session()
    killed.end()
    killed.session()

    assert notes([read_run(ended.writer.folder)]) == []
    assert notes([read_run(killed.writer.folder)]) == ["killed: the run did not reach its end"]


def test_half_a_run_says_which_half_is_missing(build):
    laws, times = build("laws"), build("times")
    for run in (laws, times):
        run.session()
    laws.law("G01", "torch")
    times.decode("torch")
    for run in (laws, times):
        run.end()
    alone, both = ([read_run(run.writer.folder) for run in runs] for runs in ([laws], [laws, times]))

    assert notes(alone) == ["no benchmark was run"]
    assert notes(both) == ["times: no law was run", "laws: no benchmark was run"]


def test_what_no_run_has_is_told_of_all_of_them_and_of_no_one(build):
    laws, nothing = build("laws"), build("nothing")
    laws.law("G01", "torch")
    nothing.session(implementations=[{"name": "flash-attn", "unavailable": "needs a CUDA device"}])
    for run in (laws, nothing):
        run.end()

    assert notes([read_run(run.writer.folder) for run in (laws, nothing)]) == ["no benchmark was run"]


def test_records_are_looked_through_as_often_for_many_names_as_for_few(build, monkeypatch):
    looked, latest = [], Run.latest
    monkeypatch.setattr(Run, "latest", lambda run, kind: looked.append(kind) or latest(run, kind))
    times = []
    for number in (2, 200):
        run = build(f"of {number}")
        for name in range(number):
            run.law("G18", f"name {name}")
        looked.clear()
        assert len(judged(subjects([read_run(run.writer.folder)]))) == number
        times.append(len(looked))
    assert times[0] == times[1]
