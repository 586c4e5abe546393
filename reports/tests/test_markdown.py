"""report.md: the same in short, and nothing in a name can become markup."""

import re

import pytest

from kvproof_reports.markdown import render_markdown, write_markdown
from kvproof_reports.markup import escape, fenced, table
from kvproof_reports.records import read_run

GOLDEN = """\
## kvproof

| implementation | verdict | verified | broken | refused | known broken | not run | breaks |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| torch | conforms | 4 | 0 | 1 | 0 | 0 |  |
| triton | broken | 2 | 1 | 0 | 0 | 0 | G18 |
| paged | broken as declared | 0 | 0 | 0 | 1 | 0 | A04 |
| contiguous | nothing verified | 0 | 0 | 0 | 0 | 1 |  |

### Broken

**triton** G18: A token counts once, whatever the block table looks like.

```text
suites/kernel/test_laws.py::test_law[chunked]
position 17 was read twice
(sequence 0, block 1, slot 1)
Case(block_size=16, context_lens=[18], seed=3)
```

### Fastest of those that break no law

| workload | fastest | beside the next | block size | median and interval |
| --- | --- | --- | ---: | ---: |
| decode, 4 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu, churned | torch | no other was timed \
| 256 | 1,730 \\[1,570 to 1,820, quartiles\\] tokens/s |

### Not verified, and why

- not run: **contiguous**, 1 test: needs a CUDA device
- refused: **torch**, 1 test: declares no fp8
- known broken: **paged**, 1 test: keeps blocks; see the expectations file

### Throughput against block size, tokens/s

decode, 4 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu

| implementation | table | 8 | 16 | 32 | 64 | 128 | 256 |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| torch | dense | 1,110 | 1,480 | 1,780 | 1,980 | 2,090 | 2,150 |
| torch | identity | 1,000 | 1,330 | 1,600 | 1,780 | 1,880 | 1,940 |
| torch | shuffled | 926 | 1,230 | 1,480 | 1,650 | 1,740 | 1,800 |
| torch | churned | 893 | 1,190 | 1,430 | 1,590 | 1,680 | 1,730 |

Not timed: **triton**, decode, 4 sequences of 1,024 tokens, heads 32/8, head dim 128, float32, cpu: \
runs in Triton's interpreter on this machine (sm\\_80 168 registers, 0 B spilled, 34,816 B shared; \
sm\\_90 168 registers, 0 B spilled, 34,816 B shared)

### Allocator

| implementation | operation | block size | ns per token | median ms |
| --- | --- | ---: | ---: | ---: |
| paged | append | 16 | 210 | 0.210 |
| paged | free | 16 | 12.0 | 0.210 |

### Allocators in a serving engine

| implementation | workload | ns per append | stable batch | µs per admission | p99 | µs per free | µs per step \
| bytes a block | prefix hits | ns per append includes |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| paged | serve, 30% shared | 61.0 | 9.50 | 14.2 | 40.0 | 4.80 | 15.6 | 32.0 | 38.4 % | step tensors |

### Trace replay

| allocator | trace | pool | waste | mean running | peak running | preemptions | finished |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
| paged | sample.jsonl | 4,096 blocks of 16 | 4.0 % | 31.5 | 48 | 3 | 1,998 of 2,000 |
| contiguous | sample.jsonl | 4,096 blocks of 16 | 71.0 % | 9.20 | 13 | 0 | 1,998 of 2,000 |

a: cpu, smoke, seed 7; python 3.11.7, torch 2.13.0, triton 3.8.0, platform Linux x86\\_64, cpu made-up CPU, \
git commit 0123abc, kvproof 0.1.0
"""


def test_the_short_report_of_a_whole_run(build, tmp_path):
    path = write_markdown([read_run(build("a").everything())], tmp_path / "report.md")

    assert path.read_text(encoding="utf-8") == GOLDEN


HOSTILE = "<img src=x>|`*_[a](b)&\n# head"


def test_hostile_names_add_no_markup_and_no_column(build):
    text = render_markdown([read_run(build("a", HOSTILE).everything())])

    outside = re.sub(r"```+text\n.*?\n```+\n", "", text, flags=re.S)
    assert "<img" not in outside
    assert "\n# head" not in outside
    assert [line.replace(r"\|", "").count("|") for line in outside.splitlines() if line.startswith("| torch")] == [
        9
    ] * 5


def test_escaping_keeps_a_text_on_one_line_and_literal():
    assert escape("a|b <i> `c`\n*d* _e_ & \\") == r"a\|b &lt;i&gt; \`c\` \*d\* \_e\_ &amp; \\"


def test_a_code_block_cannot_be_closed_from_inside():
    assert fenced("x\n```\n<b>") == "````text\nx\n```\n<b>\n````"


def test_a_long_reason_is_cut_and_says_so():
    assert "(2,000 characters in all, see report.html)" in fenced("x" * 2000)


def test_many_counterexamples_fit_a_comment_and_none_is_lost_silently(build):
    run = build("a")
    for number in range(300):
        run.law("G18", "torch", "broken", test=str(number), reason="x" * 3000)

    text = render_markdown([read_run(run.writer.folder)])

    assert len(text) < 65_536
    assert "... and 290 more tests, in report.html" in text


def test_a_run_of_any_size_fits_a_comment_and_says_what_is_left_out(build):
    run = build("a")
    for number in range(400):
        run.law("G18", "torch", "refused", test=str(number), reason=f"reason {number} " + "x" * 300)
        run.decode("torch", "churned", median_ms=1.0, batch=number + 1)
        run.replay(f"allocator-{number}")

    text = render_markdown([read_run(run.writer.folder)])

    assert len(text.encode()) < 65_536
    assert "... and 380 more reasons, in report.html" in text
    assert "... and 384 more workloads, in report.html" in text


def test_what_does_not_fit_a_comment_is_cut_whole_and_the_text_says_so(build):
    run = build("a")
    for number in range(900):
        run.replay(f"allocator-{number}")

    text = render_markdown([read_run(run.writer.folder)])

    assert text.endswith("... cut here; all of it is in report.html\n")
    assert "allocator-1 " not in text


def test_a_row_whose_laws_are_not_verified_is_stamped(build):
    run = build("a")
    run.decode(verified=False)

    text = render_markdown([read_run(run.writer.folder)])

    assert "| torch | identity | 2,000 † |" in text
    assert "† the laws of this row were not verified" in text


@pytest.mark.parametrize("num_text_columns", [1, 2])
def test_numbers_are_aligned_to_the_right(num_text_columns):
    rule = table(["a", "b"], [["x", 1]], num_text_columns).splitlines()[1]

    assert rule.count("---:") == 2 - num_text_columns
