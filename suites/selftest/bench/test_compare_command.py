"""``make compare``: both tables in one file, each as soon as it is there."""

from datetime import date

import pytest
from click.testing import CliRunner

from kvproof_suites.bench import attention_side_by_side, compare, side_by_side


@pytest.fixture
def given(monkeypatch):
    """What the two halves were asked for; each gives one table."""
    asked = {}

    def allocators(entries, repeats, requests, kept):
        asked["allocators"] = (entries, repeats, requests)
        yield "| allocator |"

    def kernels(steps, entries, rounds, kept):
        asked["kernels"] = (steps, entries, rounds)
        yield "| kernel |"

    monkeypatch.setattr(side_by_side, "parts", allocators)
    monkeypatch.setattr(attention_side_by_side, "parts", kernels)
    return asked


def run(*arguments):
    return CliRunner().invoke(compare.command, arguments, catch_exceptions=False)


def test_everything_takes_part_at_the_shapes_that_are_published(given, tmp_path):
    assert run("--output", str(tmp_path / "compare.md")).exit_code == 0
    steps, entries, rounds = given["kernels"]
    assert (entries, rounds, {(step.point, step.heads, step.head_dim) for step in steps}) == (
        [],
        20,
        {("32q1s2048", "32/8", 128)},
    )
    assert [(step.dtype, step.block_size) for step in steps] == [
        *[("float32", size) for size in (16, 32, 64, 128)],
        *[("bfloat16", size) for size in (16, 32, 64, 128)],
    ]
    assert given["allocators"] == ([], 3, None)


def test_tables_are_added_to_what_the_file_holds(given, tmp_path):
    output = tmp_path / "new folder" / "compare.md"
    run("--output", str(output), "--only", "allocators", "--requests", "9")
    run("--output", str(output), "--rounds", "2", "--batch", "1", "--context-len", "64")
    lines = [line for line in output.read_text().splitlines() if line.startswith(("#", "|"))]
    allocators, kernels = (["## Allocators side by side", "| allocator |"], ["## Kernels side by side", "| kernel |"])
    assert lines == [*allocators, *allocators, *kernels]
    assert given["kernels"][0][0].point == "1q1s64"


def test_without_a_name_the_file_lies_where_the_run_of_this_day_is_published(given, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "PUBLISHED", tmp_path)
    monkeypatch.setattr(compare, "cpu_name", lambda: "A CPU (8 cores)")
    run()
    assert [path.parent.name for path in tmp_path.glob("*/compare.md")] == [f"a-cpu-8-cores-{date.today()}"]


def test_what_was_measured_is_kept_when_the_rest_fails(given, tmp_path, monkeypatch):
    def kernels(*given):
        yield "| one type |"
        raise RuntimeError("the machine went away")

    monkeypatch.setattr(attention_side_by_side, "parts", kernels)
    output = tmp_path / "compare.md"
    with pytest.raises(RuntimeError):
        run("--output", str(output))
    assert "| allocator |" in output.read_text()
    assert "| one type |" in output.read_text()
