"""Tables as data: what is shown, what is sorted and saved, and what is left away."""

import pytest

from kvproof_reports.links import linked
from kvproof_reports.rates import INTERVAL, POINT, QUARTILES, Estimate, time_ms, tokens_per_second
from kvproof_reports.tables import MOST_ROWS, Table, number, share, text

COLUMNS = (text("name", "name"), number("median_ms", "median ms"), share("waste", "waste"), number("gone", "gone"))
TABLE = Table("t", COLUMNS, [{"name": "a", "median_ms": 1.23456789, "waste": 0.5, "gone": None}])


def test_three_digits_are_shown_and_all_are_kept():
    row = TABLE.rows[0]

    assert [column.shown(row) for column in COLUMNS] == ["a", "1.23", "50.0 %", "–"]
    assert TABLE.data == [["a", 1.23456789, 0.5, None]]


def test_a_column_of_numbers_that_nothing_was_recorded_for_is_left_away():
    assert [column.name for column in TABLE.filled().columns] == ["name", "median_ms", "waste"]


def test_an_estimate_shows_its_middle_and_its_range_and_sorts_by_its_middle():
    row = {"median_ms": Estimate(2.0, 1.9, 2.2, INTERVAL)}

    assert (COLUMNS[1].shown(row), COLUMNS[1].range(row), COLUMNS[1].raw(row)) == ("2.00", "1.90 to 2.20", 2.0)


def test_a_page_shows_no_more_rows_than_it_can_bear_and_saves_all():
    long = Table("t", COLUMNS, [{"name": str(index)} for index in range(MOST_ROWS + 5)])

    assert (len(long.seen), len(long.data)) == (MOST_ROWS, MOST_ROWS + 5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"low_ms": 1.8, "high_ms": 2.4, "q1_ms": 1.0, "q3_ms": 3.0}, (1.8, 2.4, INTERVAL)),
        ({"samples_ms": [2.0] * 6, "q1_ms": 1.0, "q3_ms": 3.0}, (2.0, 2.0, INTERVAL)),
        ({"samples_ms": [2.0] * 3, "q1_ms": 1.0, "q3_ms": 3.0}, (1.0, 3.0, QUARTILES)),
        ({}, (2.0, 2.0, POINT)),
        ({"q1_ms": 0.0, "q3_ms": 3.0}, (2.0, 2.0, POINT)),
    ],
)
def test_the_best_that_a_record_knows_of_its_spread_is_taken(fields, expected):
    time = time_ms({"median_ms": 2.0, **fields})

    assert (time.low, time.high, time.kind) == expected


def test_the_fastest_time_is_the_highest_rate():
    rate = tokens_per_second({"median_ms": 2.0, "low_ms": 1.0, "high_ms": 4.0, "tokens_per_second": 100.0})

    assert (rate.value, rate.low, rate.high) == (100.0, 50.0, 200.0)


def test_links_leave_the_text_as_it_is():
    told = "see (https://example.org/a), a/b#12; not http://x.org, javascript:alert(1) or #13"
    pieces = list(linked(told))

    assert "".join(piece for piece, _ in pieces) == told
    assert [address for _, address in pieces if address] == [
        "https://example.org/a",
        "https://github.com/a/b/issues/12",
    ]
