"""The picture of imports in docs: as the code is now, and without a circle."""

from __future__ import annotations

import pytest

import import_picture


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return import_picture.read()


def test_the_picture_is_up_to_date(arrows: dict[str, set[str]]) -> None:
    assert import_picture.PAGE.read_text() == import_picture.page(arrows), "run: make docs"


def test_no_packages_import_each_other(arrows: dict[str, set[str]]) -> None:
    assert import_picture.circles(arrows) == []


def test_packages_that_import_each_other_are_found() -> None:
    assert import_picture.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert import_picture.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert import_picture.without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set()}
    drawn = import_picture.page({"knafka.a": {"knafka.b"}, "knafka.b": set()})
    assert "    knafka.a --> knafka.b\n" in drawn
