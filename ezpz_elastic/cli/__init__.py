"""The command line. A command is one file here that defines ``run``; its name is the file's (``_`` reads ``-``).

Nothing is imported for a command that was not asked for: ``ezpz-elastic scrape`` must not pay for torch. So a command
file is imported when its command is called, and for ``--help`` the first line of its docstring is read without
importing it. A file that offers several sub-commands defines ``app`` (a ``typer.Typer``) instead of ``run``; one that
passes unknown arguments on defines ``CONTEXT`` (click's context settings) beside it; one that reads a foreign command
line with a parser of its own defines ``verbatim``, which is given every word as it stands. Each returns the exit code.
Files whose names begin with ``_`` are shared parts and no commands.

``--verbose`` is an option of every command, read by the parser that knows where a command line of the user's begins.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from ezpz_elastic.errors import UsageError

__all__ = ["commands", "main"]


def commands() -> dict[str, str]:
    """All commands: name -> first line of the file's docstring."""
    files = sorted(Path(__file__).parent.glob("[a-z]*.py"))
    return {file.stem.replace("_", "-"): _summary(file) for file in files}


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code: 2 for wrong usage, told in one line.

    Args:
        arguments: without the program's name; ``sys.argv`` by default.
    """
    words = sys.argv[1:] if arguments is None else arguments
    verbose: list[str] = []
    try:
        code = _run(words, verbose)
    except UsageError as error:
        if verbose:
            raise
        print(f"ezpz-elastic: {error.line()}", file=sys.stderr)
        code = 2
    raise SystemExit(code)


def _run(words: list[str], verbose: list[str]) -> int:
    """Find the command and call it; ``verbose`` takes our own ``--verbose``, before the command's name or after it."""
    known = commands()
    while words[:1] == ["--verbose"]:
        verbose.append(words[0])
        words = words[1:]
    if not words or words[0] in {"-h", "--help", "help"}:
        width = max(map(len, known), default=0)
        print("usage: ezpz-elastic COMMAND …\n")
        print("\n".join(f"  {name:<{width}}  {summary}" for name, summary in known.items()))
        print("\nezpz-elastic COMMAND --help tells more. --verbose shows tracebacks.")
        return 0
    if words[0] in {"-V", "--version"}:
        from ezpz_elastic import __version__

        print(__version__)
        return 0
    if words[0] not in known:
        raise UsageError(f"no command {words[0]!r}", expected=f"one of {', '.join(known)}")
    module = import_module(f"ezpz_elastic.cli.{words[0].replace('-', '_')}")
    if (verbatim := getattr(module, "verbatim", None)) is not None:
        return int(verbatim([*verbose, *words[1:]]))
    return _call(module, words, verbose)


def _call(module: object, words: list[str], verbose: list[str]) -> int:
    import typer

    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(context_settings=getattr(module, "CONTEXT", None))(module.__dict__["run"])
    command = typer.main.get_command(app)
    option = _verbose_option(verbose)
    for each in (command, *getattr(command, "commands", {}).values()):
        each.params.append(option)
    # typer carries a click of its own in some releases, so its exceptions are found through typer's
    wrong_usage: type[Exception] = next(
        base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
    )
    try:
        code = command.main(args=words[1:], prog_name=f"ezpz-elastic {words[0]}", standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.Abort:
        return 130
    except wrong_usage as error:
        raise _told(error, f"ezpz-elastic {words[0]}") from error
    return code if isinstance(code, int) else 0


def _verbose_option(verbose: list[str]) -> Any:
    """The option ``--verbose`` of any command: ``verbose`` takes it, and the command itself is told nothing."""
    import typer

    def take(given: bool) -> None:
        verbose.extend(["--verbose"] * given)

    option = typer.Option(
        "--verbose", help="show the traceback of a usage error", callback=take, is_eager=True, expose_value=False
    )

    def carrier(verbose: bool = False) -> None:
        del verbose

    carrier.__annotations__["verbose"] = Annotated[bool, option]
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return next(item for item in typer.main.get_command(app).params if item.name == "verbose")


def _told(error: Exception, command: str) -> UsageError:
    """What the parser of options refuses as one line of ours, with the help of the command it was reading."""
    context = getattr(error, "ctx", None)
    told = (error.format_message() if hasattr(error, "format_message") else str(error)).rstrip(".")
    commands_of_group = getattr(getattr(context, "command", None), "commands", {})
    return UsageError(
        told,
        expected=f"one of {', '.join(commands_of_group)}" if commands_of_group and "command" in told.lower() else "",
        hint=f"{getattr(context, 'command_path', command).replace('{', '').replace('}', '')} --help",
    )


def _summary(file: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    except SyntaxError:
        return "(this command's file is broken)"
    return text.partition("\n")[0]
