"""A Trigger that is paused and goes on, in every world."""

from __future__ import annotations

import pytest
from support.behaviour import (
    PAUSED,
    TRIGGER,
    World,
    broker,
    expect,
    message,
    only_in,
    trigger,
    until_arrived,
)
from support.gate import only_chaos

from knafka_operator.model import resources

PAUSE = {resources.PAUSED_ANNOTATION: "true"}
OFTEN = {"autoscaling.eventing.knative.dev/polling-interval": "1"}
MEANWHILE = [f"meanwhile-{number}" for number in range(5)]
MIN_SCALE = {"autoscaling.eventing.knative.dev/min-scale": "1"}


@only_in("memory", "local-shared")
def test_a_paused_trigger_gets_nothing_until_it_goes_on_from_where_it_was(world: World) -> None:
    """In a cluster it takes half a minute, and the next test shows the same and more, of a Trigger
    with a dispatcher of its own."""
    _is_paused_and_goes_on(world, {})


@pytest.mark.alone
@only_in("memory", cluster=only_chaos)
def test_a_trigger_with_min_scale_is_paused_too_and_stays_so_when_the_operator_starts_again(
    world: World,
) -> None:
    """On one machine no process drains unasked, and the file says that it is paused."""
    _is_paused_and_goes_on(world, MIN_SCALE, restarts=True)


def _is_paused_and_goes_on(
    world: World, annotations: dict[str, str], *, restarts: bool = False
) -> None:
    """A second Trigger shows that what was sent is delivered by all that deliver; several times,
    as the lag is looked at meanwhile."""
    annotations = annotations | OFTEN
    mail, other = world.subscriber("mail"), world.subscriber("other")
    world.apply(broker(), trigger(mail, annotations=annotations), trigger(other, "others"))
    expect(world, "Trigger", "orders", TRIGGER)
    expect(world, "Trigger", "others", TRIGGER)
    world.send("shop", "before")
    until_arrived(world, "mail", "before")
    world.pause("orders")
    expect(world, "Trigger", "orders", PAUSED)
    told = message(world, "Trigger", "orders", "Delivering")
    assert told == (
        'its annotation knafka.dev/paused is "true": nothing is delivered, and its events wait in '
        "Kafka"
    )
    if restarts:
        world.restart()
        expect(world, "Trigger", "orders", PAUSED)
    for each in MEANWHILE:
        world.send("shop", each)
        until_arrived(world, "other", each)
    assert world.arrived("mail") == ["before"]
    world.pause("orders", paused=False)
    expect(world, "Trigger", "orders", TRIGGER)
    until_arrived(world, "mail", *MEANWHILE)
    assert sorted(world.arrived("mail")) == ["before", *MEANWHILE]


@only_in("memory")
def test_a_trigger_that_is_made_paused_keeps_its_events_from_ready_on(world: World) -> None:
    """Also over a start of the operator."""
    mail, other = world.subscriber("mail"), world.subscriber("other")
    world.apply(broker(), trigger(mail, annotations=PAUSE), trigger(other, "others"))
    expect(world, "Trigger", "orders", PAUSED)
    expect(world, "Trigger", "others", TRIGGER)
    world.send("shop", "first")
    until_arrived(world, "other", "first")
    world.restart()
    expect(world, "Trigger", "others", TRIGGER)
    expect(world, "Trigger", "orders", PAUSED)
    world.send("shop", "second")
    until_arrived(world, "other", "first", "second")
    assert world.arrived("mail") == []
    world.apply(trigger(mail))
    expect(world, "Trigger", "orders", TRIGGER)
    until_arrived(world, "mail", "first", "second")
