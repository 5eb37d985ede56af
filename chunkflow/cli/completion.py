"""``chunkflow completion`` writes a script by which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable

from chunkflow.cli.common import Commands, command

TEXT = """\
Add a line to the shell's start-up file:

  bash: eval "$(chunkflow completion bash)"
  zsh:  eval "$(chunkflow completion zsh)"        after compinit
  fish: chunkflow completion fish | source"""

BASH = """\
_chunkflow() {{
    local word=$2 before=$3 words=
    if [[ $COMP_CWORD -eq 1 ]]; then
        words="{commands}"
        if [[ $word == -* ]]; then words="{program}"; fi
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
            *) if [[ $word == -* ]]; then case "${{COMP_WORDS[1]}}" in
{options}
            esac; fi ;;
        esac
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -F _chunkflow chunkflow
"""

PROGRAM = {
    "--help": "show this help message and exit",
    "--version": "show the version of the program and exit",
    "--debug": "show tracebacks of errors",
}
"""Options of the program itself."""

ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
"""zsh takes bash's functions with this."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "completion", run, "write a script for a shell that completes commands", TEXT)
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")
    parser.set_defaults(parsers=commands.choices)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(SHELLS[options.shell](options.parsers), end="")
    return 0


Parsers = dict[str, argparse.ArgumentParser]


VALUES = {
    "device": ("auto", "cpu", "cuda"),
    "boundary": ("none", "nearest", "reflect", "mirror", "periodic"),
    "compressor": ("zstd", "blosc", "lz4", "gzip", "none"),
}
"""Values of options that take others, too."""


def choices_of(action: argparse.Action) -> list[str]:
    """Values that a shell offers for an option."""
    return list(map(str, action.choices if action.choices is not None else VALUES.get(action.dest, ())))


def bash(parsers: Parsers) -> str:
    """Script for bash."""
    values, options = [], []
    for name, parser in parsers.items():
        flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        options.append(f'                {name}) words="{" ".join(flags)}" ;;')
        for action in parser._actions:
            if choices_of(action):
                before = action.option_strings or [name]
                patterns = "|".join(f'"{name} {each}"' for each in before)
                values.append(f'            {patterns}) words="{" ".join(choices_of(action))}" ;;')
    names = {"commands": " ".join(parsers), "program": " ".join(PROGRAM)}
    return BASH.format(**names, values="\n".join(values), options="\n".join(options))


def zsh(parsers: Parsers) -> str:
    """Script for zsh."""
    return ZSH + bash(parsers)


def fish(parsers: Parsers) -> str:
    """Script for fish."""
    lines = [
        f"complete -c chunkflow -n __fish_use_subcommand -l {flag.removeprefix('--')} -d {shlex.quote(told)}"
        for flag, told in PROGRAM.items()
    ]
    for name, parser in parsers.items():
        about = shlex.quote((parser.description or "").partition("\n")[0])
        lines.append(f"complete -c chunkflow -n __fish_use_subcommand -f -a {name} -d {about}")
        for action in parser._actions:
            line = f"complete -c chunkflow -n '__fish_seen_subcommand_from {name}'"
            given = f" -x -a '{' '.join(values)}'" if (values := choices_of(action)) else ""
            takes = given or (" -r" if action.nargs != 0 else "")
            told = f" -d {shlex.quote((action.help or '').replace('%%', '%'))}"
            flags = [flag.removeprefix("--") for flag in action.option_strings if flag.startswith("--")]
            lines += [f"{line} -l {flag}{takes}{told}" for flag in flags]
            if given and not action.option_strings:
                lines.append(f"{line} -f -a '{' '.join(values)}'")
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[Parsers], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""What writes each shell's script."""
