"""FolderWatcher: reports changed files in folders, also after a folder was replaced.

inotify watches the folder itself, not its path: once a folder is removed, renamed or moved together
with a parent, its watch stays silent about the folder that is made at the path later. So the
watcher compares each path with what it watches, and watches anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch
from watchfiles._rust_notify import WatchfilesRustInternalError

REPLACED_CHECK_INTERVAL: Final = 1.0
"""Seconds without a change after which the watcher checks whether a folder was replaced."""
DEBOUNCE_MS: Final = 400
"""Longest time for which changes are gathered, in milliseconds."""
QUIET_MS: Final = 50
"""Milliseconds without another change that end the gathering."""
POLL_INTERVAL_MS: Final = 300
"""Milliseconds between two looks at the files where inotify can't be used."""


class FolderWatcher:
    """Watches folders by inotify, and by polling once inotify has failed."""

    def __init__(self, subject: str, say: Callable[[str], None]) -> None:
        """`subject` names what is watched (`manifest files`) in a message to the user, which `say`
        shows if polling begins."""
        self._subject = subject
        self._say = say
        self._polls = False
        """Whether inotify has failed, so that files are polled from then on."""

    async def changes(
        self,
        folders: Collection[Path],
        is_relevant: Callable[[Change, str], bool],
        stop_event: asyncio.Event | None = None,
    ) -> AsyncIterator[set[Path]]:
        """Yield the changed files directly in `folders` for which `is_relevant` is True.

        The first set says that watching has begun, also if it is empty: earlier changes weren't
        seen. Any file of a folder in a set may have changed. A folder that doesn't exist, or can't
        be read, is watched once it does and can. Ends when `stop_event` is set; None: never ends.
        """
        folders = frozenset(folders)
        stop_event = stop_event or asyncio.Event()
        unwatched: frozenset[Path] = frozenset()  # folders whose changes may be missed

        def is_file_or_folder(change: Change, path: str) -> bool:
            """Return whether a change is one of a relevant file, or of a folder itself."""
            return Path(path) in folders or is_relevant(change, path)

        while not stop_event.is_set():
            watched = {folder: _inode_of(folder) for folder in folders}
            changes = awatch(
                *(folder for folder, inode in watched.items() if inode is not None),
                watch_filter=is_file_or_folder,
                stop_event=stop_event,
                recursive=False,
                debounce=DEBOUNCE_MS,
                step=QUIET_MS,
                rust_timeout=round(REPLACED_CHECK_INTERVAL * 1_000),
                yield_on_timeout=True,
                force_polling=True if self._polls else None,
                poll_delay_ms=POLL_INTERVAL_MS,
            )
            is_first = True
            try:
                async with aclosing(changes):
                    async for changed in changes:
                        files = {Path(path) for _, path in changed} - folders
                        if files or is_first:
                            yield files | unwatched
                        is_first, unwatched = False, frozenset()
                        # A new folder may get the inode of the deleted one.
                        deleted = {Path(path) for kind, path in changed if kind is Change.deleted}
                        if any(
                            folder in deleted or _inode_of(folder) != inode
                            for folder, inode in watched.items()
                        ):
                            # Changes in any folder that this watch has gathered since are lost.
                            unwatched = folders
                            break
            except (OSError, WatchfilesRustInternalError, ExceptionGroup) as error:
                # watchfiles wraps what happens after the start in an ExceptionGroup.
                if self._polls or isinstance(error, FileNotFoundError):
                    await asyncio.sleep(REPLACED_CHECK_INTERVAL)  # a folder was removed just now
                else:
                    self._polls = True
                    self._say(
                        f"{self._subject} are polled for changes, since they can't be watched "
                        f"({error}): the sysctls fs.inotify.max_user_instances and "
                        "max_user_watches may be too low"
                    )


def _inode_of(folder: Path) -> tuple[int, int] | None:
    """Return the device and the inode of the folder at a path; None if it can't be watched, since
    it doesn't exist or can't be read."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if os.access(folder, os.R_OK) else None
