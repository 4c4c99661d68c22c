"""What the defaults of the policy for tables promise about a trickle of small files."""

from __future__ import annotations

from benchmarks.trickle import DAY_MINUTES, DEFAULT, EAGER, run


def test_a_trickle_is_rewritten_a_few_times_and_not_once_a_minute() -> None:
    default, eager = run(DEFAULT, 1_000_000, days=1), run(EAGER, 1_000_000, days=1)
    assert eager.amplification > 100, "without patience each file has its day rewritten"
    assert default.amplification < 1 + 1 / (DEFAULT.min_new_percent / 100)
    assert default.most_files < DAY_MINUTES / 4
    assert default.last_tasks == 0
