"""There are never two leaders, whatever is slow, lost, killed, paused or released."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from knafka_operator.kube_api.lease import CLAIM_CHECK_INTERVAL, DURATION, Election, Lease

REPLICAS = ("a", "b", "c")
RATES = st.floats(0.95, 1.05)
"""How fast a replica's clock runs."""


@dataclass
class Store:
    """The API server: one Lease, replaced only by who knows its version."""

    lease: Lease | None = None
    version: int = 0

    def write(self, lease: Lease) -> Lease | None:
        if lease.version != ("" if self.lease is None else self.lease.version):
            return None
        self.version += 1
        self.lease = replace(lease, version=str(self.version))
        return self.lease


@dataclass
class Replica:
    """A process and its one request under way; each call moves that on by one stage."""

    name: str
    rate: float
    offset: float
    store: Store
    election: Election = field(init=False)
    request: Lease | str | None = "idle"
    stage: str = "idle"
    sent: float = 0.0
    answer: Lease | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Anew, or after a kill: a process of this name is dead, and its request may be stored."""
        self.election, self.stage = Election(self.name), "idle"

    def clock(self, now: float) -> float:
        return self.offset + now * self.rate

    def leads(self, now: float) -> bool:
        return self.election.leads(self.clock(now))

    def step(self, now: float, *, release: bool) -> None:
        clock = self.clock(now)
        match self.stage:
            case "idle":
                self.stage = "reading"
            case "reading":
                self.answer, self.stage = self.store.lease, "read"
            case "read":
                self.election.observe(self.answer, clock)
                wanted = self.election.lease_to_claim() if self.election.may_claim(clock) else None
                if release and self.leads(now):
                    # It acts no more from here on.
                    wanted, self.election = self.election.lease_to_release(), Election(self.name)
                self.request, self.sent = wanted, clock
                self.stage = "idle" if wanted is None else "writing"
            case "writing":
                assert isinstance(self.request, Lease)
                self.answer, self.stage = self.store.write(self.request), "written"
            case "written":
                if self.answer is not None:
                    self.election.on_written(self.answer, self.sent, clock)
                self.stage = "idle"


steps = st.lists(
    st.tuples(
        st.sampled_from(range(len(REPLICAS))),
        st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 2 * DURATION)),
        st.sampled_from(["whole"] * 6 + ["go"] * 6 + ["release", "kill", "lose"]),
    ),
    max_size=120,
)


@settings(max_examples=examples(400))
@given(steps, st.tuples(RATES, RATES, RATES))
def test_there_are_never_two_leaders(
    taken: list[tuple[int, float, str]], rates: tuple[float, float, float]
) -> None:
    now, store = 0.0, Store()
    replicas = [
        Replica(name, rate, 1000.0 * number, store)
        for number, (name, rate) in enumerate(zip(REPLICAS, rates, strict=True))
    ]
    for number, passes, what in taken:
        now += passes
        replica = replicas[number]
        match what:
            case "kill":
                replica.start()
            case "lose":
                replica.stage = "idle"
            case _:
                replica.step(now, release=what == "release")
                while what == "whole" and replica.stage != "idle":
                    replica.step(now, release=False)
        assert sum(each.leads(now) for each in replicas) <= 1


@given(st.floats(0, 3), st.lists(st.floats(0, 0.3), min_size=90, max_size=90))
def test_a_killed_leader_is_followed_soon_after_its_lease_is_over(
    looked: float, delays: list[float]
) -> None:
    store = Store()
    first, second = (Replica(name, 1.0, 0.0, store) for name in ("a", "b"))
    for now in (0.0, 0.0, 0.1, 0.1, 0.2, 0.2):
        first.step(now, release=False)
    assert first.leads(0.2)
    now = looked  # of the first look of the other; at 0.1 the last renewal was stored
    for delay in delays:
        second.step(now, release=False)
        now += delay
        if second.leads(now):
            break
        if second.stage == "idle":
            now += CLAIM_CHECK_INTERVAL
    assert second.leads(now)
    assert now < max(looked, 0.1) + DURATION + 4
