"""The traps of Azure's CSV: seven decimals, line ends, no newline at the end, and rows that must be refused."""

from __future__ import annotations

import statistics

import pytest

from kvproof_traces import SAMPLES, TraceError, load, stream

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = b"2031-01-02 03:04:05.0000000,40,9"


def write(path, *lines, end=b"\r\n"):
    path.write_bytes(end.join([HEADER, *lines]) + end)
    return path


def refusal(path):
    with pytest.raises(TraceError) as caught:
        load(path, format="azure")
    return caught.value


def test_eight_ticks_are_800_ns_and_not_the_954_that_float_seconds_make_of_them():
    requests = load(SAMPLES / "azure.csv").requests
    assert [request.arrival_ms for request in requests] == [0.0, 0.0008, 899.9999]


def test_the_last_row_counts_without_a_newline_after_it():
    assert not (SAMPLES / "azure.csv").read_bytes().endswith(b"\n")
    requests = load(SAMPLES / "azure.csv").requests
    lengths = [(request.num_prompt_tokens, request.num_output_tokens) for request in requests]
    assert lengths == [(37, 4), (900, 1), (37, 250)]


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_both_line_ends_and_a_byte_order_mark_are_accepted(tmp_path, end, mark):
    path = write(tmp_path / "trace.csv", GOOD, GOOD, end=end)
    path.write_bytes(mark + path.read_bytes())
    assert load(path).rows_read == 2


def test_a_fraction_may_be_short_or_absent_and_means_the_same(tmp_path):
    rows = (b"2031-01-02 03:04:05,1,1", b"2031-01-02 03:04:05.5,1,1", b"2031-01-02 03:04:05.5000001,1,1")
    requests = load(write(tmp_path / "trace.csv", *rows)).requests
    assert [request.arrival_ms for request in requests] == [0.0, 500.0, 500.0001]


def test_the_times_of_2024_have_a_zone_and_sometimes_no_decimals(tmp_path):
    rows = (b"2031-01-02 03:04:05.009930+00:00,1,1", b"2031-01-02 03:04:06+00:00,1,1")
    requests = load(write(tmp_path / "trace.csv", *rows)).requests
    assert [request.arrival_ms for request in requests] == [0.0, 990.07]


def test_another_zone_than_utc_is_refused(tmp_path):
    assert "is not a time" in refusal(write(tmp_path / "trace.csv", b"2031-01-02 03:04:05+01:00,1,1")).what


def test_a_year_boundary_and_a_leap_day_are_counted(tmp_path):
    rows = (b"2027-12-31 23:59:59.9999999,1,1", b"2028-01-01 00:00:00,1,1", b"2028-03-01 00:00:00,1,1")
    requests = load(write(tmp_path / "trace.csv", *rows)).requests
    assert [request.arrival_ms for request in requests] == [0.0, 0.0001, 60 * 86_400_000 + 0.0001]


def test_the_dirty_sample_is_refused_at_its_first_bad_line():
    error = refusal(SAMPLES / "azure_dirty.csv")
    assert (error.line, error.field) == (3, "TIMESTAMP")
    assert str(error) == (
        f"{SAMPLES / 'azure_dirty.csv'}:3: TIMESTAMP: 2031-01-02 03:04:05 is 4500 ms before the row above; "
        "sort the file by time"
    )


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (3, "GeneratedTokens", "0 is below 1"),
        (4, "ContextTokens", "is empty"),
        (5, "TIMESTAMP", "+00:00' is not a time as the rows above give it, without a zone"),
    ],
)
def test_every_dirty_row_is_refused_by_its_own_field(tmp_path, line, field, says):
    row = (SAMPLES / "azure_dirty.csv").read_bytes().split(b"\r\n")[line - 1]
    error = refusal(write(tmp_path / "trace.csv", GOOD, row))
    assert (error.file, error.line, error.field) == (str(tmp_path / "trace.csv"), 3, field)
    assert says in error.what


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (b"2031-01-02 03:04:05,40", "GeneratedTokens"),
        (b"2031-01-02 03:04:05", "ContextTokens"),
        (b"2031-01-02 03:04:05,40,9,1", "line"),
        (b"2031-01-02 03:04:05,-4,9", "ContextTokens"),
        (b"2031-01-02 03:04:05,4.0,9", "ContextTokens"),
        (b"2031-01-02 03:04:05, 4,9", "ContextTokens"),
        (b"2031-01-02 03:04:05,0,9", "ContextTokens"),
        ("2031-01-02 03:04:05,٤,9".encode(), "ContextTokens"),
        (b"2031-01-02 03:04:05,9999999999,9", "ContextTokens"),
        (b"2031-02-30 03:04:05,4,9", "TIMESTAMP"),
        ("2031-01-02 03:04:05.٤,4,9".encode(), "TIMESTAMP"),
        (b"2031-01-02T03:04:05,4,9", "TIMESTAMP"),
        (b"2031-01-02 03:04:05.12345678,4,9", "TIMESTAMP"),
        (b"2031-01-02 03:04:05.,4,9", "TIMESTAMP"),
        (b"\xff031-01-02 03:04:05,4,9", "line"),
        (b"", "line"),
    ],
)
def test_a_malformed_row_names_file_line_and_field(tmp_path, row, field):
    error = refusal(write(tmp_path / "trace.csv", GOOD, row, GOOD))
    assert (error.line, error.field) == (3, field)
    assert str(error).startswith(f"{tmp_path / 'trace.csv'}:3: {field}: ")
    assert error.cure


def test_another_header_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"TIMESTAMP,GeneratedTokens,ContextTokens\n")
    assert (refusal(path).line, refusal(path).field) == (1, "header")


def test_the_multimodal_file_is_read_and_says_what_is_left_out():
    trace = load(SAMPLES / "azure_mm.csv")
    assert (trace.format, trace.rows_read) == ("azure-multimodal", 1)
    assert (trace.requests[0].num_prompt_tokens, trace.requests[0].num_output_tokens) == (1500, 30)
    assert "NumImages" in trace.notes[0]


def test_a_number_of_images_that_is_none_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2031-01-02 03:04:05,two,15,3\n")
    with pytest.raises(TraceError, match=":2: NumImages: 'two' is not a number"):
        load(path)


def test_the_reader_streams(tmp_path):
    reader = iter(stream(write(tmp_path / "trace.csv", GOOD, b"cut off")))
    assert next(reader).num_prompt_tokens == 40
    with pytest.raises(TraceError):
        next(reader)


@pytest.mark.parametrize(
    ("name", "num_rows", "mean_prompt", "mean_output", "longest", "rate"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 1155, 211, 14_050, 5.53),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 2048, 27.9, 7_437, 2.57),
    ],
)
def test_the_real_files_have_their_published_figures(
    real_trace, name, num_rows, mean_prompt, mean_output, longest, rate
):
    requests = load(real_trace(name)).requests
    prompts = [request.num_prompt_tokens for request in requests]
    outputs = [request.num_output_tokens for request in requests]
    assert len(requests) == num_rows
    assert statistics.fmean(prompts) == pytest.approx(mean_prompt, abs=0.5)
    assert statistics.fmean(outputs) == pytest.approx(mean_output, abs=0.5)
    assert max(prompts) == longest
    assert num_rows / (requests[-1].arrival_ms / 1000) == pytest.approx(rate, abs=0.005)
