"""When captures run, by tables: no kernel, no clock."""

from __future__ import annotations

import pytest
from gresshopper.state import failures, pace
from gresshopper.state.pace import Allowance, Pace
from gresshopper.state.session import NoRoom
from gresshopper.state.store import StoreError, StoreHangs


def after(ran: float, spent: float = 0.0, ended: float = 100.0) -> Pace:
    """A kernel whose only cell ran so long, ended at a moment, and had its reply delayed."""
    found = Pace(0.0)
    found.cell_begins(ended - ran)
    assert found.cell_over(ended) == pytest.approx(ran)
    found.took_before_reply(spent)
    return found


@pytest.mark.parametrize(
    ("ran", "spent", "share"),
    [
        (0.0, 0.0, 0.0),
        (0.2, 0.0, 0.0),  # 1 % is less than the least
        (1.0, 0.0, 0.01),
        (1.0, 0.006, 0.004),
        (1.0, 0.008, 0.0),
        (1.0, 0.5, 0.0),
        (99.0, 0.0, pace.MOST),
        (99.0, 0.97, 0.02),
    ],
)
def test_a_reply_waits_for_a_share_of_the_run_time(ran: float, spent: float, share: float) -> None:
    assert after(ran, spent).share() == pytest.approx(share)


def test_a_cell_that_was_not_seen_to_begin_ran_for_no_time() -> None:
    found = Pace(0.0)
    assert found.cell_over(50.0) == 0.0 and found.ran == 0.0


@pytest.mark.parametrize(
    ("patience", "allowed"),
    [(None, pace.SHORT), (0.001, pace.SHORT), (pace.SHORT, 0.0), (0.2, 0.0)],
)
def test_what_was_too_long_before_a_reply_is_tried_after_it_only_if_that_is_longer(
    patience: float | None, allowed: float
) -> None:
    found = Pace(0.0)
    found.patience = patience
    found.gave_up_before_reply(0.0)
    assert found.after_reply(0.0) == allowed


def test_captures_after_a_reply_count_by_themselves() -> None:
    found = after(10.0)
    found.took_after_reply(100.0, 100.5, whole=True)
    assert (found.between, found.spent, found.thought) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("failures", "waits"),
    [(0, 0.0), (1, 4.0), (2, 8.0), (3, 16.0), (6, 128.0), (7, 256.0), (8, 300.0), (2000, 300.0)],
)
def test_each_failure_in_a_row_doubles_the_wait(failures: int, waits: float) -> None:
    found = Pace(0.0)
    for _ in range(failures):
        found.fails(10.0)
    assert found.retry(10.0) == max(waits, pace.THINK)
    assert found.audit_retry(10.0) == max(waits, pace.REST)
    assert (found.after_reply(10.0 + waits - 0.1) == 0.0) == (failures > 0)
    assert found.after_reply(10.0 + waits) > 0.0
    assert not found.is_crowded(10.0)  # a cell's own capture is tried all the same


def test_a_capture_that_succeeds_ends_the_row_of_failures() -> None:
    found = Pace(0.0)
    for _ in range(5):
        found.fails(0.0)
    found.succeeds()
    found.fails(100.0)
    assert found.retry(100.0) == pace.FAILED


@pytest.mark.parametrize(("now", "crowded"), [(0.0, True), (59.9, True), (60.0, False), (1e6, False)])
def test_without_room_nothing_is_tried_for_a_while(now: float, crowded: bool) -> None:
    found = Pace(0.0)
    found.fails(0.0)
    found.finds_no_room(0.0)
    assert found.is_crowded(now) == crowded
    assert (found.after_reply(now) == 0.0) == crowded
    assert found.retry(now) == max(pace.CROWDED - now, pace.THINK)


def test_a_store_that_hangs_is_looked_at_each_second_however_long_it_hangs() -> None:
    found = Pace(0.0)
    for second in range(100):
        found.waits_for_store(float(second))
        assert found.retry(float(second)) == pace.HANGS
        assert found.after_reply(second + 0.5) == 0.0
    assert found.after_reply(100.0) > 0.0  # the next cell's capture follows its reply again


@pytest.mark.parametrize(
    ("planned", "asked", "due"),
    [
        (None, (5.0, 1.0), 6.0),
        ((5.0, 1.0), (5.5, 1.0), None),  # the earlier one stands
        ((5.0, 1.0), (5.0, 1.0), None),
        ((5.0, 10.0), (5.5, 1.0), 6.5),
    ],
)
def test_one_audit_is_planned_at_a_time(
    planned: tuple[float, float] | None, asked: tuple[float, float], due: float | None
) -> None:
    found = Pace(0.0)
    before = planned and found.plan_audit(*planned)
    assert found.plan_audit(*asked) == due
    assert found.is_audit_due(due or before or 0.0)
    assert before is None or found.is_audit_due(before) == (due is None)
    found.audit_begins()
    assert found.plan_audit(*asked) == sum(asked)


def test_an_audit_comes_when_the_user_has_thought_long_enough() -> None:
    found = after(1.0, ended=100.0)
    assert found.until_audit(100.2) == pytest.approx(pace.REST - 0.2)
    assert found.until_audit(100.0 + pace.REST) == 0.0
    assert found.until_audit(200.0) < 0


@pytest.mark.parametrize(
    ("ended", "began", "took", "following"),
    [
        (100.0, 101.0, 0.01, 1.0),  # as long as the user has thought
        (100.0, 103.0, 0.5, 10.0),  # at most one part in AUDITS of the time
        (100.0, 500.0, 0.5, pace.RESTS),
        (100.0, 500.0, 5.0, 100.0),
    ],
)
def test_audits_take_a_small_part_of_the_time(ended: float, began: float, took: float, following: float) -> None:
    found = after(1.0, ended=ended)
    assert found.audited(began, began + took) == pytest.approx(following)
    assert found.thought == pytest.approx(took)
    assert found.until_audit(began + took) == pytest.approx(pace.AUDITS * took)


def test_a_capture_between_cells_takes_little_of_a_long_run_and_comes_all_the_same() -> None:
    """Cells of a second whose capture takes three: each attempt that is given up is twice as long as the one before."""
    allowance = Allowance(0.0)
    needs, now, attempts = 3.0, 0.0, []
    for _ in range(1000):
        now += 1.0
        allowance.ran(1.0)
        allowed = allowance.at(now)
        if allowed:
            attempts.append(min(allowed, needs))
            now += attempts[-1]
            allowance.took(now, attempts[-1], whole=allowed >= needs)
    given_up = attempts[: attempts.index(needs)]
    assert all(later >= 2 * earlier for earlier, later in zip(given_up, given_up[1:]))
    assert attempts.count(needs) >= 5
    assert sum(attempts) <= 2 * pace.BEYOND * now + pace.SHORT * len(attempts)


def test_a_short_capture_between_cells_is_always_allowed() -> None:
    allowance = Allowance(0.0)
    for _ in range(100):
        assert allowance.at(0.0) >= pace.SHORT
        allowance.took(0.0, pace.SHORT, whole=True)
    allowance.took(0.0, pace.SHORT, whole=False)
    allowance.took(0.0, 1.0, whole=False)
    assert allowance.at(0.0) == 0.0  # it takes longer than that
    allowance.took(0.0, 0.001, whole=True)
    assert allowance.at(0.0) == pace.SHORT
    assert allowance.at(1e6) == pace.PASSED  # whoever thought for long isn't held up for long


def test_failed_captures_are_told_once_until_one_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    found = failures.Failures(Pace(0.0))
    for nbytes in (1, 2, 3):
        found.failed(StoreError(f"{nbytes} bytes can't be stored"))
    assert capsys.readouterr().err.count("couldn't be saved") == 1
    found.whole()
    found.failed(StoreError("4 bytes can't be stored"))
    assert "4 bytes" in capsys.readouterr().err


def test_a_capture_that_is_not_begun_fails_for_the_present_reason_in_a_sentence() -> None:
    found = failures.Failures(Pace(0.0))
    found.hold_off(NoRoom("it would take more than 1 MiB"))
    found.failed(StoreError("the disk is full"))
    assert found.crowded().why == "it would take more than 1 MiB"
    assert found.store_hangs(StoreHangs("the store doesn't answer")).why == "the store doesn't answer"
