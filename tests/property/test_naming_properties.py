"""Whatever templates come and go, each object keeps its name, and no two have one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_operator.installation.naming import (
    NamedObject,
    NameKind,
    NameTaken,
    Naming,
    normalize_template,
)
from knafka_operator.kafka.desired import NamesOfOthers, kept_or_new_name
from knafka_operator.model.resources import (
    GROUP_STATUS,
    TOPIC_STATUS,
    Metadata,
    ObjectStatus,
    Resource,
)

KEYS = {NameKind.BROKER_TOPIC: TOPIC_STATUS, NameKind.TRIGGER_GROUP: GROUP_STATUS}
PARTS = st.sampled_from(["{{.Namespace}}", "{{ .Name }}", "{{ .UID }}", "-", ".", "e", "knafka"])
TEMPLATES = st.lists(PARTS, min_size=1, max_size=5).map("".join)
NAMES = st.text("ab-", min_size=1, max_size=4).filter(lambda name: name.strip("-") == name)
OBJECTS = st.builds(tuple, st.tuples(NAMES, NAMES))


@given(
    st.sampled_from(list(KEYS)),
    st.lists(st.one_of(TEMPLATES.map(lambda text: ("template", text)), OBJECTS), max_size=12),
)
def test_names_are_kept_and_are_nobody_elses(kind: NameKind, steps: list[tuple[str, str]]) -> None:
    naming, taken, made = Naming(), dict[str, str](), dict[tuple[str, str], str]()

    def named(of: tuple[str, str], uid: str) -> str:
        annotations = {KEYS[kind]: made[of]} if of in made else {}
        metadata = Metadata(namespace=of[0], name=of[1], uid=uid)
        owner = Resource(
            api_version="v1",
            kind="X",
            metadata=metadata,
            status=ObjectStatus(annotations=annotations),
        )
        return kept_or_new_name(kind, owner, KEYS[kind], NamesOfOthers(taken, uid), naming)

    for step in steps:
        if step[0] == "template":
            try:
                naming.set_current_template(kind, normalize_template(kind, step[1]))
            except InvalidDocument:
                continue
        else:
            uid = f"uid-of-{step[0]}.{step[1]}"
            try:
                name = named(step, uid)
            except (NameTaken, InvalidDocument):
                assert step not in made, "what has a name keeps it"
                continue
            assert names.is_topic(name)
            assert taken.setdefault(name, uid) == uid, "no two objects have one name"
            assert made.setdefault(step, name) == name
            assert naming.is_own(kind, name, NamedObject(*step, uid))
    # After a restart the same templates are known, and each has its name still.
    for of, name in made.items():
        assert named(of, f"uid-of-{of[0]}.{of[1]}") == name
