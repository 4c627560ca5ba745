"""The Lease, as one replica sees it."""

from __future__ import annotations

from dataclasses import replace

from knafka_operator.kube_api.lease import (
    DURATION,
    LEASE_RENEW_INTERVAL,
    RENEW_WITHIN,
    Election,
    Lease,
)

OTHERS = Lease("other", DURATION, 3, "7")


def _leading(at: float = 100.0) -> Election:
    election = Election("me")
    election.observe(None, at)
    election.on_written(replace(election.lease_to_claim(), version="1"), at, at + 0.1)
    return election


def test_the_first_to_come_claims_a_lease_that_is_not_there() -> None:
    election = Election("me")
    election.observe(None, 5.0)
    assert election.may_claim(5.0)
    assert election.lease_to_claim() == Lease("me", DURATION, 0, "")
    assert not election.leads(5.0)


def test_another_ones_lease_is_claimed_once_it_has_not_changed_for_its_duration() -> None:
    election = Election("me")
    for now in (0.0, 3.0, 5.9):
        election.observe(OTHERS, now)
        assert not election.may_claim(now)
    election.observe(replace(OTHERS, version="8"), 5.95)
    assert not election.may_claim(5.95 + DURATION - 0.01)
    assert election.may_claim(5.95 + DURATION)
    assert election.lease_to_claim() == Lease("me", DURATION, 4, "8")


def test_the_duration_is_the_one_that_its_holder_promised() -> None:
    election = Election("me")
    election.observe(replace(OTHERS, duration=30.0), 0.0)
    assert not election.may_claim(29.9)
    assert election.may_claim(30.0)


def test_a_leader_that_cannot_renew_stops_before_another_may_begin() -> None:
    election = _leading(100.0)
    assert election.leads(100.0 + RENEW_WITHIN - 0.01)
    assert not election.leads(100.0 + RENEW_WITHIN)
    assert LEASE_RENEW_INTERVAL < RENEW_WITHIN < DURATION


def test_a_renewal_counts_from_when_it_was_sent_not_from_its_answer() -> None:
    election = _leading(100.0)
    election.on_written(Lease("me", DURATION, 0, "2"), 102.0, 105.0)
    assert not election.leads(102.0 + RENEW_WITHIN)


def test_a_lease_that_somebody_deletes_is_claimed_when_its_holder_counts_as_dead() -> None:
    election = Election("me")
    election.observe(OTHERS, 0.0)
    election.observe(None, 4.0)
    election.observe(None, 5.0)
    assert not election.may_claim(4.0 + DURATION - 0.01)
    assert election.may_claim(4.0 + DURATION)
    leader = _leading(at=100.0)
    leader.observe(None, 101.0)
    assert leader.may_claim(101.0)


def test_a_released_lease_is_claimed_at_once() -> None:
    election = Election("me")
    election.observe(replace(OTHERS, holder=""), 0.0)
    assert election.may_claim(0.0)


def test_who_releases_it_does_not_lead_any_more_and_who_lost_it_releases_nothing() -> None:
    election = _leading(100.0)
    released = election.lease_to_release()
    assert released == Lease("", DURATION, 0, "1")
    election.on_written(replace(released, version="2"), 101.0, 101.1)
    assert not election.leads(101.1)
    election.observe(OTHERS, 102.0)
    assert election.lease_to_release() is None


def test_a_container_that_was_restarted_in_its_pod_goes_on_at_once() -> None:
    """Its name is the pod's, whose former process is dead."""
    election = Election("other")
    election.observe(OTHERS, 0.0)
    assert election.may_claim(0.0)
    assert election.lease_to_claim().transitions == OTHERS.transitions
