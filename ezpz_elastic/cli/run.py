"""Start this host's agent: takes torchrun's command line, and needs no seam in torch."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
import uuid
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from ezpz_elastic.errors import UsageError

__all__ = ["parse", "verbatim"]

MAX_RESTARTS = 3
"""Restarts without progress that a job is allowed where nothing is said; torchrun's own default is none."""

DEFAULT_PORT = 29500
"""torchrun's own default port."""

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"

_HELP = "ezpz-elastic run --help"
_OURS = {"rdzv_backend": "ezpz", "max_restarts": MAX_RESTARTS}


def verbatim(words: list[str]) -> int:
    """Run a job's agent on this host until the job has ended.

    Args:
        words: torchrun's arguments, then the script and its own; ``--verbose`` before the script is ours.

    Returns:
        The exit code, the same as torchrun's with ``--rdzv-backend=ezpz``; 2 if the command line cannot be meant, which
        one line has said then.

    Raises:
        SystemExit: the job was stopped, with the code the decision gives; ``--help``.
    """
    _import_torch()
    verbose = "--verbose" in words  # among the script's own words too, as long as these cannot be told apart
    try:
        arguments = _parser().parse_args(words)
        verbose = arguments.verbose
        config, command, command_arguments = parse(arguments)
        return _run_agent(config, command, command_arguments)
    except UsageError as error:
        if verbose:
            traceback.print_exc()
        print(f"ezpz-elastic run: {error.line()}", file=sys.stderr)
        return 2


def _import_torch() -> None:
    """Import torch with what its C++ logs off in this process; workers get the environment as it was.

    When the host of the embedded store is lost, torch prints a stack trace for each connection that this cuts. The
    agent says in one line what happened. torch reads the level once, when it is imported.
    """
    if LOG_LEVEL in os.environ:
        return
    os.environ[LOG_LEVEL] = "FATAL"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[LOG_LEVEL]


def parse(arguments: Namespace) -> tuple[Any, Any, list[str]]:
    """Read torchrun's arguments with torchrun's own code, and complete what we have defaults for.

    Args:
        arguments: as torchrun's parser left them.

    Returns:
        torch's ``LaunchConfig``, the command to start in every worker, and its arguments.

    Raises:
        UsageError: a value cannot be meant.
    """
    from torch.distributed.run import config_from_args

    _check(arguments)
    _choose_endpoint(arguments)
    try:
        config, command, command_arguments = config_from_args(arguments)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise UsageError(str(error) or f"torch refuses the arguments ({type(error).__name__})", hint=_HELP) from error
    _add_ours(config.rdzv_configs, arguments)
    return config, command, command_arguments


def _add_ours(conf: dict[str, Any], arguments: Namespace) -> None:
    """Our own flags are other spellings of ``--rdzv-conf`` keys, for people who would not look for them there."""
    names = arguments.warm_import.split(",") if arguments.warm_import else []
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--warm-import: {name!r}", expected="names of modules, joined by commas", hint=_HELP)
    ours = {"warm": arguments.warm, "warm_import": "+".join(names), "keep": "on" if arguments.keep else None}
    for key, value in ours.items():
        if not value:
            continue
        if conf.setdefault(key, value) != value:
            flag = "--keep" if key == "keep" else f"--{key.replace('_', '-')}={value}"
            raise UsageError(f"{flag} and --rdzv-conf={key}={conf[key]}", expected="one of them")


def _parser() -> ArgumentParser:
    """torchrun's parser with our defaults; a mistake is an exception instead of a page of usage."""
    from torch.distributed.run import get_args_parser

    from ezpz_elastic.settings import Settings

    def refuse(message: str) -> NoReturn:
        raise UsageError(message, hint=_HELP)

    try:
        parser: ArgumentParser = get_args_parser()
    except ValueError as error:
        raise UsageError(f"a PET_… variable in the environment: {error}", expected="0 or 1 for a flag") from error
    parser.prog = "ezpz-elastic run"
    parser.allow_abbrev = False  # or a script's own --log is looked up among our options, too, and found ambiguous
    parser.description = "The agent of this host. Takes the arguments of torchrun."
    parser.epilog = (
        f"What differs from torchrun: --rdzv-backend is ezpz, --max-restarts is {MAX_RESTARTS} if it is not given, "
        f"--log-dir is not used (logs are in the run directory). Keys of --rdzv-conf: "
        f"{', '.join(Settings.__struct_fields__)}; docs/running.md explains them."
    )
    parser.error = refuse  # type: ignore[method-assign]  # torch builds the parser, so it cannot be a subclass
    parser.add_argument(
        "--warm",
        choices=["on", "off"],
        help="Fork workers from a process that has imported torch already, or start each in an interpreter of its own "
        "(default: on; off where a worker is no Python script: --no-python, --run-path).",
    )
    parser.add_argument(
        "--warm-import",
        metavar="A,B",
        help="Further modules for that process to import, none of the program's own; what the first life of the "
        "workers imports by its first step is learned anyway.",
    )
    parser.add_argument(
        "--keep", action="store_true", help="Leave the run's records in etcd when the job is over, for a postmortem."
    )
    parser.add_argument("--verbose", action="store_true", help="Show the traceback of a usage error.")
    for name, value in _OURS.items():
        if f"PET_{name.upper()}" not in os.environ:  # where torchrun takes a default from, too
            parser.set_defaults(**{name: value})
    return parser


def _check(arguments: Namespace) -> None:
    """What torch would answer with a traceback, or only after it has started something."""
    from ezpz_elastic.plugin import impossible_nnodes

    if arguments.rdzv_backend != "ezpz":
        backend = arguments.rdzv_backend
        raise UsageError(f"--rdzv-backend={backend}", expected="ezpz", hint=f"torchrun has the {backend} rendezvous")
    if wrong := impossible_nnodes(["--rdzv-backend=ezpz", f"--nnodes={arguments.nnodes}"]):
        raise UsageError(wrong)
    _at_least("--nproc-per-node", arguments.nproc_per_node, 1)
    _at_least("--max-restarts", arguments.max_restarts, 0)
    _at_least("--shutdown-timeout", arguments.shutdown_timeout, 0)
    if not arguments.monitor_interval > 0:
        raise UsageError(f"--monitor-interval={arguments.monitor_interval}", expected="seconds, more than zero")
    _check_event_handler(arguments.event_log_handler)
    script = arguments.training_script
    if arguments.module:
        return
    if arguments.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"no program {script!r}", expected="a program in PATH, or a path to one")
    elif not Path(script).exists():
        raise UsageError(f"no script {script!r} in {Path.cwd()}", expected="a Python file", hint=_HELP)
    elif Path(script).is_dir() and not (Path(script) / "__main__.py").exists():
        raise UsageError(f"{script} is a directory without a __main__.py", expected="a Python file", hint=_HELP)


def _at_least(option: str, value: object, least: int) -> None:
    """Refuse a number that is too small; words such as ``gpu`` are torch's to judge."""
    try:
        number = int(str(value))
    except ValueError:
        return
    if number < least:
        raise UsageError(f"{option}={value}", expected=f"{least} or more")


def _check_event_handler(name: str) -> None:
    from torch.distributed.elastic.events import get_logging_handler

    try:
        get_logging_handler(name)
    except KeyError as error:
        raise UsageError(f"--event-log-handler={name}: torch has no such handler", expected="null, console") from error


def _choose_endpoint(arguments: Namespace) -> None:
    """Where the job's store is, if ``--rdzv-endpoint`` does not say it.

    One host needs none: the store is on loopback, on a port that the system chooses. torchrun's older spelling,
    ``--master-addr`` and ``--master-port``, means the same place.
    """
    one_host = arguments.nnodes in {"1", "1:1"}
    named = arguments.master_port is not None or arguments.master_addr != "127.0.0.1"
    if arguments.standalone or (one_host and not arguments.rdzv_endpoint and not named):
        arguments.rdzv_endpoint = "127.0.0.1:0"
        arguments.local_addr = arguments.local_addr or "127.0.0.1"
        if arguments.rdzv_id == "none" or arguments.standalone:
            arguments.rdzv_id = uuid.uuid4().hex
    elif named and not arguments.rdzv_endpoint:
        arguments.rdzv_endpoint = f"{arguments.master_addr}:{arguments.master_port or DEFAULT_PORT}"
    elif not arguments.rdzv_endpoint:
        hint = "the first host's address and a free port, the same on every host"
        raise UsageError("no --rdzv-endpoint", expected=f"HOST:{DEFAULT_PORT}", hint=hint)


def _run_agent(config: Any, command: Any, command_arguments: list[str]) -> int:
    """What torch's ``launch_agent`` does, with our agent."""
    import torch
    from torch.distributed.elastic import events
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from ezpz_elastic.agent import EzpzElasticAgent
    from ezpz_elastic.assembly import build_handler

    torch.multiprocessing._set_thread_name("pt_elastic")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    handler = build_handler(
        RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
    )
    try:
        spec = WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=command,
            args=tuple(command_arguments),
            rdzv_handler=handler,
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            event_log_handler=config.event_log_handler,
            numa_options=config.numa_options,
            duplicate_stdout_filters=config.duplicate_stdout_filters,
            duplicate_stderr_filters=config.duplicate_stderr_filters,
            virtual_local_rank=config.virtual_local_rank,
        )
        agent = EzpzElasticAgent(
            spec,
            logs_specs=config.logs_specs,
            start_method=config.start_method,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=config.shutdown_timeout,
        )
        result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        return 1 if result.is_failed() else 0
    finally:
        handler.shutdown()
