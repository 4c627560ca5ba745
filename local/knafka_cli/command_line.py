"""The command line: `knafka up` runs everything on this machine; other commands use what it runs.

Commands about one subject are in one folder. Each reads its arguments, calls `knafka_local`,
`knafka_client` or a job, and prints the result. `shared` has options that several commands take.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from knafka.core.documents import explain_faults
from knafka.core.errors import KnafkaError
from knafka_cli.access import policy_commands, token_command
from knafka_cli.adoption import adopt_commands
from knafka_cli.checks import check_command
from knafka_cli.dead_letters import (
    dead_letter_commands,
    forward_command,
    group_commands,
    replay_commands,
)
from knafka_cli.events import send_command, tail_command, trace_command
from knafka_cli.running import console_command, status_commands, up_commands
from knafka_cli.sensors import convert_commands, sensor_commands, sensor_record_commands
from knafka_cli.shared.options import EXIT_FAILED, print_error
from knafka_cli.triggers import trigger_commands

app = typer.Typer(
    name="knafka",
    help="A Kafka-backed Knative Broker on your machine: Brokers and Triggers from YAML, events "
    "over HTTP, through a real Kafka, to your functions.",
    epilog="Start with: knafka up -f examples/quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
broker_app = typer.Typer(help="Show Brokers.", no_args_is_help=True)
trigger_app = typer.Typer(help="Show, test, pause and rewind Triggers.", no_args_is_help=True)
dead_letters_app = typer.Typer(
    help="Show events that could not be delivered, report on them, send them again.",
    no_args_is_help=True,
)
policy_app = typer.Typer(
    help="Test who may send which events to which Broker.", no_args_is_help=True
)
sensor_app = typer.Typer(
    help="Show and test Sensors, which fire on conditions over several events.",
    no_args_is_help=True,
)
convert_app = typer.Typer(
    help="Convert other products' resources to Knafka's.", no_args_is_help=True
)
# The order of these calls is that of the help, which lists groups of commands last.
up_commands.add_to(app)
check_command.add_to(app)
send_command.add_to(app)
token_command.add_to(app)
status_commands.add_to(app, broker_app)
tail_command.add_to(app)
trace_command.add_to(app)
console_command.add_to(app)
adopt_commands.add_to(app)
app.add_typer(broker_app, name="broker")
policy_commands.add_to(policy_app)
app.add_typer(policy_app, name="policy")
trigger_commands.add_to(trigger_app)
app.add_typer(trigger_app, name="trigger")
convert_commands.add_to(convert_app)
app.add_typer(convert_app, name="convert")
sensor_commands.add_to(sensor_app)
sensor_record_commands.add_to(sensor_app)
app.add_typer(sensor_app, name="sensor")
dead_letter_commands.add_to(dead_letters_app)
group_commands.add_to(dead_letters_app)
forward_command.add_to(dead_letters_app)
replay_commands.add_to(dead_letters_app)
app.add_typer(dead_letters_app, name="dead-letters")


def main() -> None:
    """Run the command that the process's arguments name; an expected error (`KnafkaError`) is
    printed as one line on stderr, with exit code 1."""
    try:
        with explain_faults():
            app()
    except KnafkaError as error:
        print_error(str(error))
        sys.exit(EXIT_FAILED)


def _print_version(is_given: bool) -> None:
    """Print the version and exit, if the option --version is given."""
    if is_given:
        typer.echo(f"knafka {version('knafka')}")
        raise typer.Exit


@app.callback()
def knafka(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    # Typer's function for options of `knafka` itself; --version is handled by its callback. There
    # is no docstring, since Typer would show it in place of the app's help.
    pass
