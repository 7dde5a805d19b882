"""Places in a recording are read as people write them, to the nanosecond."""

from __future__ import annotations

import pytest

from memexport.analysis.when import When, parse_when
from memexport.errors import UsageError

NOON = 1_795_262_400 * 10**9


@pytest.mark.parametrize(
    ("text", "when"),
    [
        (1000, When("event", 1000)),
        ("1000", When("event", 1000)),
        (" #0 ", When("event", 0)),
        ("12.5s", When("after start", 12_500_000_000)),
        ("300ms", When("after start", 300_000_000)),
        ("2 min", When("after start", 120_000_000_000)),
        ("0.1µs", When("after start", 100)),
        ("1h", When("after start", 3_600_000_000_000)),
        ("@1795262400.000000001", When("unix", NOON + 1)),
        ("2026-11-21T12:00:00Z", When("unix", NOON)),
        ("2026-11-21 12:00:00.123456789 UTC", When("unix", NOON + 123_456_789)),
        ("2026-11-21T14:00:00.5+02:00", When("unix", NOON + 500_000_000)),
        ("2026-11-21T12:00", When("unix", NOON)),
        ("2026-11-21", When("unix", NOON - 12 * 3_600 * 10**9)),
    ],
)
def test_a_place_is_an_event_a_time_after_the_start_or_a_time_of_day(text, when):
    assert parse_when(text) == when


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", -1, "1.5", "1e5s", "5 parsecs", "2026-13-21", "٣", "9" * 50, "9" * 10**6, "12.5s\n12.5s"],
)
def test_anything_else_is_wrong_usage_and_says_what_to_write(text):
    with pytest.raises(UsageError, match="no place in a recording") as raised:
        parse_when(text)
    assert "12.5s" in raised.value.hint
    assert len(str(raised.value)) < 200
