"""`knafka up`: runs a supervisor and shows it in a view, until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from knafka_cli.shared import event_input, sending
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation, RunningState
from knafka_console import opening
from knafka_local.supervisor import Supervisor, UpOptions
from knafka_local.tokens.accounts import ServiceAccount
from knafka_local.view import View

EXIT_FORCED: Final = 130
"""Exit code after a second Ctrl-C: the one that shells use for SIGINT."""


async def run_until_stopped(
    options: UpOptions, view: View, events_file: Path | None = None
) -> None:
    """Run `knafka up` until SIGINT or SIGTERM stops it cleanly; a second signal kills its
    processes.

    `view` shows what happens. The events of `events_file`, if one is given, are sent once
    everything is up. Raises `KnafkaError` if something can't be started.
    """
    start_time = time.monotonic()
    supervisor = Supervisor(options, view)
    installation = Installation(options.data)
    _stop_on_signals(supervisor, view)
    try:
        # What is started later must find its port free.
        ports = {options.port, options.first_channels_port, options.kafka_port}
        with opening.open_listener(
            options.console_port, enabled=options.console, other_ports=ports
        ) as listener:
            await _start_and_run(supervisor, installation, listener, view, events_file, start_time)
    except asyncio.CancelledError:  # by a signal
        view.say(f"stopped; everything is kept in {options.data}")
    finally:
        supervisor.kill()


async def _start_and_run(
    supervisor: Supervisor,
    installation: Installation,
    listener: socket.socket | None,
    view: View,
    events_file: Path | None,
    start_time: float,
) -> None:
    """Start everything and run until cancelled.

    `listener` is the console's socket; None: there is no console. `events_file` has events to send
    once everything is up; None: there are none. `start_time` is the monotonic time at which the
    command began.
    """
    async with (
        supervisor.running(),
        opening.serve_installation(supervisor, installation.data, listener) as url,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(view.follow(supervisor.snapshot))
        # Let the view's task start and show the first snapshot before the lines below.
        await asyncio.sleep(0)
        if url:
            view.say(f"console at {url}")
        view.say(f"up after {time.monotonic() - start_time:.1f} s; Ctrl-C stops everything")
        group.create_task(snapshot_file.keep_written(installation, supervisor.snapshot))
        if not supervisor.snapshot().brokers:
            view.say("no Broker is declared: name its YAML with -f, such as examples/quickstart")
        if events_file is not None:
            await _send_file(supervisor, installation.data, events_file, view)
        await asyncio.Event().wait()  # for ever: a signal cancels this task


def _stop_on_signals(supervisor: Supervisor, view: View) -> None:
    """Handle signals: the first SIGINT or SIGTERM cancels the current task, which then stops
    everything cleanly; the second one kills all processes at once."""
    loop, main_task = asyncio.get_running_loop(), asyncio.current_task()
    signals = (signal.SIGINT, signal.SIGTERM)

    def kill_and_exit() -> None:
        """Kill every process and exit."""
        supervisor.kill()
        os._exit(EXIT_FORCED)

    def stop() -> None:
        """Begin to stop cleanly; from now on, a signal kills everything."""
        view.say("stopping: deliveries in flight are finished; press Ctrl-C again to force it")
        for number in signals:
            loop.add_signal_handler(number, kill_and_exit)
        if main_task is not None:
            main_task.cancel()

    for number in signals:
        loop.add_signal_handler(number, stop)


def sender_authorization(state: RunningState, data_folder: Path, url: str) -> Callable[[], bytes]:
    """Return a function that returns the `authorization` header line of a request to the Broker at
    `url`; the line is empty if the Broker requires no tokens.

    The sender is the service account `default` of the Broker's namespace, as for a pod that names
    no account. Tokens are signed by the issuer (a key) in the `data_folder` of the installation.
    """
    ingress = next((ingress for ingress in state.ingresses if state.url_of(ingress) == url), None)
    if ingress is None or ingress.audience is None:
        return bytes  # called without arguments, it returns an empty line
    # Imported here, as most Brokers require no tokens.
    from knafka_local.tokens.issuer import Issuer, TokenProvider

    account = ServiceAccount(ingress.namespace, "default")
    return TokenProvider(
        Issuer.load(Installation(data_folder).issuer), account, ingress.audience
    ).header


async def _send_file(supervisor: Supervisor, data_folder: Path, file: Path, view: View) -> None:
    """Send the events of an NDJSON file, in order, to the only Broker that is served; the view
    shows each answer, or why nothing is sent."""
    brokers = [broker.url for broker in supervisor.snapshot().brokers if broker.url]
    if len(brokers) != 1:
        view.say(f"{file} is not sent: that needs exactly one Broker, and there are {len(brokers)}")
        return
    view.say(f"sending {file} to {brokers[0]}")
    summary = sending.SendSummary()
    with file.open("rb") as lines:
        try:
            await sending.send(
                event_input.read_events(lines, str(file)),
                brokers[0],
                lambda answer: view.say(str(answer)),
                connections=1,
                authorization=sender_authorization(supervisor.state, data_folder, brokers[0]),
                summary=summary,
            )
        except event_input.BadInput as error:
            view.say(str(error))
    view.say(str(summary))
