"""Changes lose nothing (issue 4, item 5): Triggers updated under load, Brokers made again."""

from __future__ import annotations

import os

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from support.gate import only_chaos
from support.installation import Installation
from support.numbered import sending

UPDATES = int(os.environ.get("KNAFKA_UPDATES", "4"))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("brokers_go")
def test_a_trigger_that_is_updated_again_and_again_under_load_loses_nothing(
    installed: Installation, namespace: str
) -> None:
    """Every filter of it matches every event, so every event must arrive; in order for each key."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    with sending(installed, address) as sender:
        for number in range(UPDATES):
            passes = {"not": {"exact": {"type": f"never-{number}"}}}
            installed.trigger(namespace, "all", subscriber.ref, filters=[passes])
    assert len(sender.accepted) > UPDATES
    subscriber.wait_for(len(sender.accepted))
    summary = subscriber.summary()
    assert set(sender.accepted) <= set(subscriber.ids())
    assert summary["outOfOrder"] == {}
    revisions = installed.cluster.kubectl("get", "revisions", "-n", namespace, "-oname")
    assert revisions.count("all-kn-dispatcher") >= UPDATES


@only_chaos
@pytest.mark.usefixtures("brokers_go")
def test_what_is_still_being_delivered_when_a_broker_goes_hides_no_event_of_the_next(
    installed: Installation, namespace: str
) -> None:
    """F-14: the dispatcher commits as it leaves, and Kafka knows topics by their names there.

    Nor does the Trigger miss what the next Broker accepts before it is ready for it.
    """
    subscriber = installed.subscriber(namespace, SUBSCRIBER_DELAY="2.5")
    address = installed.broker(namespace, partitions=1)
    installed.trigger(namespace, "all", subscriber.ref)
    assert installed.send(address, "before").status_code == 202
    subscriber.wait_for(1)  # and is answered only later
    installed.cluster.kubectl("delete", "broker", "default", "-n", namespace, "--timeout=60s")
    address = installed.broker(namespace, partitions=1)
    assert installed.send(address, "after").status_code == 202
    subscriber.wait_for(2)
    assert set(subscriber.ids()) == {"before", "after"}


@only_chaos
@pytest.mark.usefixtures("brokers_go")
def test_a_trigger_whose_offsets_kafka_has_forgotten_gets_all_that_waits_for_it(
    installed: Installation, namespace: str
) -> None:
    """As Kafka does after a week without members; the Trigger was promised every event."""
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    nowhere = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "not-there-yet"}}
    installed.trigger(namespace, "all", nowhere, ready=False)
    installed.until_condition("trigger", "all", namespace, "SubscriberResolved", "NotFound")
    assert installed.send(address, "waits").status_code == 202
    group = installed.status("trigger", "all", namespace)["annotations"]["group.id"]
    admin = AdminClient({"bootstrap.servers": installed.kafka.bootstrap("PLAINTEXT")})

    def is_forgotten() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(30)
        except KafkaException:
            return False  # a dispatcher has still to leave it
        return True

    installed.cluster.wait_for(is_forgotten, 30, f"Kafka has forgotten {group}")
    installed.trigger(namespace, "all", subscriber.ref)
    subscriber.wait_for(1)
    assert subscriber.ids() == ["waits"]
