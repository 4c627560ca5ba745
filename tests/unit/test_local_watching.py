"""FolderWatcher: which changes are seen, also after a folder was replaced and without inotify."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import stretched
from watchfiles import Change, awatch
from watchfiles._rust_notify import WatchfilesRustInternalError

from knafka_client.declared.manifests import Manifests
from knafka_local import watching
from knafka_local.watching import FolderWatcher


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REPLACED_CHECK_INTERVAL", 0.1)


async def begin(*folders: Path, said: list[str] | None = None) -> AsyncIterator[set[Path]]:
    """The changes in folders that are watched now."""
    watcher = FolderWatcher("files", (said if said is not None else []).append)
    changes = watcher.changes(folders, lambda _, path: path.endswith(".yaml"))
    assert await following(changes) == set()
    return changes


async def following(changes: AsyncIterator[set[Path]]) -> set[Path]:
    async with asyncio.timeout(stretched(20)):
        return await anext(changes)


async def test_a_change_of_a_manifest_is_told_and_of_another_file_is_not(tmp_path: Path) -> None:
    file = tmp_path / "shop"  # named, so that its suffix doesn't matter
    file.touch()
    manifests = Manifests([file])

    def is_manifest(_: Change, path: str) -> bool:
        return manifests.is_manifest_path(Path(path))

    changes = FolderWatcher("files", print).changes(manifests.folders, is_manifest)
    assert await following(changes) == set()
    (tmp_path / "events.ndjson").touch()
    file.write_text("a")
    assert await following(changes) == {file}


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("how", ["removed", "renamed", "moved with its parent", "linked"])
async def test_a_folder_that_is_made_again_is_watched_again(
    tmp_path: Path, how: str, polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git checkout` of a branch without the folder, and back."""
    if polls:
        monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "1")
    folder, other = tmp_path / "parent" / "deploy", tmp_path / "other"
    other.mkdir()
    if how == "linked":
        folder.parent.mkdir()
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir(parents=True)
    changes = await begin(folder)

    match how:
        case "removed":
            shutil.rmtree(folder)
        case "renamed":
            folder.rename(tmp_path / "old")
        case "moved with its parent":
            folder.parent.rename(tmp_path / "old")
        case "linked":
            folder.unlink()
    assert await following(changes) == {folder}
    if how == "linked":
        folder.symlink_to(other)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    assert await following(changes) == {folder}
    (folder / "shop.yaml").touch()
    assert await following(changes) == {folder / "shop.yaml"}


async def test_a_folder_that_comes_later_is_watched_once_it_is_there(tmp_path: Path) -> None:
    changes = await begin(tmp_path / "later")
    (tmp_path / "later").mkdir()
    assert await following(changes) == {tmp_path / "later"}


@pytest.mark.parametrize("error", [WatchfilesRustInternalError, OSError])
async def test_without_inotify_files_are_polled_and_that_is_said_once(
    tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs of the user may have taken all of fs.inotify.max_user_instances, or
    max_user_watches."""

    async def without_inotify(
        *paths: Path, force_polling: bool | None, **options: Any
    ) -> AsyncIterator[set[tuple[Change, str]]]:
        if not force_polling:
            raise error("Too many open files (os error 24)")
        async for changed in awatch(*paths, force_polling=True, **options):
            yield changed

    monkeypatch.setattr(watching, "awatch", without_inotify)
    said: list[str] = []
    changes = await begin(tmp_path, said=said)
    (tmp_path / "shop.yaml").touch()
    assert await following(changes) == {tmp_path / "shop.yaml"}
    (line,) = said
    assert line.startswith("files are polled for changes, since they can't be watched (Too many")


async def test_watching_ends_by_its_event(tmp_path: Path) -> None:
    end = asyncio.Event()
    changes = FolderWatcher("files", print).changes([tmp_path], lambda *_: True, end)
    assert await following(changes) == set()
    end.set()
    with pytest.raises(StopAsyncIteration):
        await following(changes)
