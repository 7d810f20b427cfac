"""`completion`: print a script that makes a shell complete this command line. Nothing is written by hand twice.

The script is made from `commands`: every command with its options, as data, from the source of `--help`. Manual pages
are made from the same data (docs/_site/manual.py).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from importlib import import_module
from shlex import quote

from .. import protocols
from ..model import Value
from .options import BEADS, SUMMARIES
from .outcome import DONE, show
from .parser import parser_of

_OWN_WORDS = ("sema", "semats")
"""Commands that take the arguments of another tool, and have a help text of their own."""
_LOOSE = "run"
"""The command whose CMD may begin without `--` (options.split_run)."""
_TAKEN = {"FILE": "files", "EVENTS": "files", "PAGE": "files", "PID": "processes"}
"""Kinds of values that a shell can list, by the option's metavar."""
_OF_TEXT = re.compile(r"^ +(?:(-\w), )? *(--[\w-]+)(?: <?([A-Z]+|(?<=<)\w+)>?)? +(\S.*)$", re.MULTILINE)
_COMMAND_OF_TEXT = re.compile(r"^  ([a-z-]+) +(\S.*)$", re.MULTILINE)


class Option(Value):
    """One option. `metavar` is None if it takes no value; `choices` are all its values if they are few."""

    flags: tuple[str, ...]
    metavar: str | None
    help: str
    choices: tuple[str, ...] = ()

    @property
    def takes(self) -> str:
        """The kind of its value: `files` or `processes`; empty for anything else."""
        return _TAKEN.get(self.metavar or "", "")


TOP = (
    Option(("-h", "--help"), None, "show the commands"),
    Option(("-V", "--version"), None, "print the version and exit"),
)
"""Options that may be typed instead of a command."""
_HELP = "help"
_FIRST = {**SUMMARIES, _HELP: "show the options of a command"}
"""All possible first words. `help` is no command, but another way to ask for `COMMAND --help`."""


class Command(Value):
    """One command, named by its words: `run`, `beads check`. `runs`: another command stands behind `--`. `words`: the
    choices for its first argument if that is no file. `text`: the whole help of a command without a parser."""

    name: str
    summary: str
    usage: str
    options: tuple[Option, ...]
    operands: tuple[tuple[str, str], ...] = ()
    description: str = ""
    notes: str = ""
    runs: bool = False
    words: tuple[str, ...] = ()
    text: str = ""
    examples: tuple[str, ...] = ()


def commands() -> list[Command]:
    """All commands, in the order of the overview."""
    found: list[Command] = []
    spoken = tuple(protocols.names())
    for name, summary in SUMMARIES.items():
        if name == "beads":
            found += [_from_parser(f"beads {step}", summary, spoken) for step, summary in BEADS.items()]
        elif name in _OWN_WORDS:
            found.append(_from_text(name, summary))
        else:
            found.append(_from_parser(name, summary, spoken))
    return found


def _from_parser(name: str, summary: str, spoken: tuple[str, ...]) -> Command:
    parser = parser_of(name)
    options, operands = [], []
    words: tuple[str, ...] = ()
    for action in parser.actions():
        help_ = action.help or ""
        choices = tuple(map(str, action.choices or ()))
        named = action.metavar if isinstance(action.metavar, str) else "|".join(choices) or "VALUE"
        metavar = None if action.nargs == 0 else named
        if action.option_strings:
            if "--protocol" in action.option_strings:
                choices = spoken
            options.append(Option(tuple(action.option_strings), metavar, help_, choices))
        elif help_ != argparse.SUPPRESS:
            operands.append((metavar or "VALUE", help_))
            words = words or choices
    usage = parser.format_usage().removeprefix("usage: ").strip()
    return Command(
        name, summary, usage, tuple(options), tuple(operands), parser.description or "", parser.notes(), "--" in usage,
        words, examples=tuple(parser.examples),
    )  # fmt: skip


def _from_text(name: str, summary: str) -> Command:
    text: str = import_module(f".{name}", __package__).HELP
    above, _, below = text.partition("\nOptions:\n")
    options = tuple(
        Option((short, long) if short else (long,), metavar or None, help_)
        for short, long, metavar, help_ in _OF_TEXT.findall(below)
    )
    words = tuple(word for word, _ in _COMMAND_OF_TEXT.findall(above))
    usage = text.partition("\n")[0].removeprefix("Usage: ")
    shown = text.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines()
    examples = tuple(f"holdfast {line.strip()}" for line in shown)
    return Command(name, summary, f"holdfast {usage}", options, words=words, text=text, examples=examples)


def groups(found: Iterable[Command]) -> dict[str, list[str]]:
    """Possible second words, by the first: of commands with two words or with fixed operands, and of help."""
    seconds: dict[str, list[str]] = {}
    for command in found:
        first, _, second = command.name.partition(" ")
        if second:
            seconds.setdefault(first, []).append(second)
        elif command.words:
            seconds[first] = list(command.words)
    return {**seconds, _HELP: [*SUMMARIES]}


_ONE_KEY = ("completion", "postgresql", _HELP)
"""First words whose second word has no options of its own."""


def completion_(options: argparse.Namespace) -> int:
    """Print the script of one shell."""
    show({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](commands()))
    return DONE


def _flags(options: Iterable[Option]) -> str:
    return " ".join(flag for option in options for flag in option.flags)


# -- bash --------------------------------------------------------------------------------------------------------------

_BASH = r"""# bash completion for holdfast; made by: holdfast completion bash
_holdfast() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} key at words= word lock=
    COMPREPLY=()
    # bash makes --option=value three words.
    if [[ $current == = ]]; then
        current=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    fi
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "@COMMANDS@ @TOP@" -- "$current"))
        return
    fi
    key=${COMP_WORDS[1]}
    case $key in
@SECONDS@
    esac
    case $key in
        @RUNNERS@)
            for (( at = 2; at < COMP_CWORD; at++ )); do
                [[ ${COMP_WORDS[at]} == -- ]] || continue
                if declare -F _command_offset >/dev/null; then
                    _command_offset $((at + 1))
                elif (( COMP_CWORD == at + 1 )); then
                    COMPREPLY=($(compgen -c -- "$current"))
                fi
                return
            done ;;
    esac
    case $key in
        @LOOSE@)
            for (( at = 2; at < COMP_CWORD; at++ )); do
                word=${COMP_WORDS[at]}
                case $word in
                    -c|--command)
                        lock=none
                        break ;;
                    =) (( at++ )) ;;
                    -*)
                        [[ $word == --* ]] || word=-${word: -1}
                        [[ " @TAKES@ " == *" $word "* && ${COMP_WORDS[at+1]} != = ]] && (( at++ )) ;;
                    *)
                        [[ -z $lock ]] || break
                        lock=$at ;;
                esac
            done
            if [[ -z $lock || $lock == none ]]; then
                :
            elif (( at < COMP_CWORD )); then
                declare -F _command_offset >/dev/null && _command_offset $at
                return
            elif (( at == COMP_CWORD )) && [[ -n $current && $current != -* ]]; then
                while IFS= read -r word; do
                    COMPREPLY+=("$word")
                done < <(compgen -c -- "$current"; compgen -f -- "$current")
                compopt -o filenames 2>/dev/null
                return
            fi ;;
    esac
    case "$key $before" in
@VALUES@
        @FILES@)
            return ;;
        @PROCESSES@)
            words=$(ps -e -o pid= 2>/dev/null) ;;
        @PLAIN@)
            compopt +o default +o bashdefault 2>/dev/null
            return ;;
    esac
    if [[ -z $words && $current == -* ]]; then
        case $key in
@OPTIONS@
        esac
    fi
    # Without words, bash completes the names of files: those of locks, and of directories.
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
        compopt +o default +o bashdefault 2>/dev/null
    fi
}
complete -o default -o bashdefault -F _holdfast holdfast"""


def bash(found: list[Command]) -> str:
    """The script for bash; it needs no package of completions."""
    seconds = []
    for first, words in groups(found).items():
        deeper = "" if first in _ONE_KEY else f' key="{first} ${{COMP_WORDS[2]}}"'
        deeper = " compopt +o default +o bashdefault 2>/dev/null; return" if first == _HELP else deeper
        seconds.append(
            f"        {first})\n            if (( COMP_CWORD == 2 )); then\n"
            f'                COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current"))\n'
            "                compopt +o default +o bashdefault 2>/dev/null\n                return\n"
            f"            fi\n           {deeper or ' :'} ;;"
        )
    chosen: dict[tuple[str, ...], list[str]] = {}
    taken: dict[str, list[str]] = {}
    for command in found:
        for option in command.options:
            if option.metavar is not None:
                names = chosen.setdefault(option.choices, []) if option.choices else taken.setdefault(option.takes, [])
                names += [f"{_pattern(command)}{quote(' ' + flag)}" for flag in option.flags]
    values = [f"        {'|'.join(names)})\n            words={quote(' '.join(w))} ;;" for w, names in chosen.items()]
    options = [f"            {_pattern(c)}) words={quote(_flags(c.options))} ;;" for c in found]
    return _filled(
        _BASH, found, COMMANDS=" ".join(_FIRST), TOP=_flags(TOP), SECONDS="\n".join(seconds),
        VALUES="\n".join(values), FILES="|".join(taken["files"]), PROCESSES="|".join(taken["processes"]),
        PLAIN="|".join(taken[""]), OPTIONS="\n".join(options),
    )  # fmt: skip


def _pattern(command: Command) -> str:
    """A pattern for `key` that fits this command; a drop-in takes any second word."""
    return f"{quote(command.name + ' ')}*" if command.text else quote(command.name)


def _filled(template: str, found: list[Command], **values: str) -> str:
    """The template with these values, and with those about commands that run another one, which every shell needs."""
    (loose,) = [command for command in found if command.name == _LOOSE]
    values["LOOSE"] = loose.name
    values["TAKES"] = _flags(option for option in loose.options if option.metavar is not None)
    values["RUNNERS"] = "|".join(quote(command.name) for command in found if command.runs)
    return re.sub(r"@([A-Z]+)@", lambda name: values[name[1]], template)


# -- zsh ---------------------------------------------------------------------------------------------------------------

_ZSH = r"""#compdef holdfast
# zsh completion for holdfast; made by: holdfast completion zsh
_holdfast() {
    local key at word lock=
    if (( CURRENT == 2 )); then
        local -a commands=(
@COMMANDS@
        )
        _describe -t commands command commands
        _arguments @TOP@
        return
    fi
    key=$words[2]
    case $key in
@SECONDS@
    esac
    case $key in
        (@RUNNERS@)
            at=${words[(i)--]}
            if (( at < CURRENT )); then
                shift $at words
                (( CURRENT -= at ))
                _normal
                return
            fi ;;
    esac
    case $key in
        (@LOOSE@)
            for (( at = 3; at < CURRENT; at++ )); do
                word=$words[at]
                case $word in
                    (-c|--command*)
                        lock=none
                        break ;;
                    (-*)
                        [[ $word == --* ]] || word=-$word[-1]
                        [[ " @TAKES@ " == *" $word "* ]] && (( at++ )) ;;
                    (*)
                        [[ -z $lock ]] || break
                        lock=$at ;;
                esac
            done
            if [[ -z $lock || $lock == none ]]; then
                :
            elif (( at < CURRENT )); then
                shift $(( at - 1 )) words
                (( CURRENT -= at - 1 ))
                _normal
                return
            elif (( at == CURRENT )) && [[ $words[at] != -* ]]; then
                _alternative 'files:file:_files' 'commands:command:_command_names -e'
                return
            fi ;;
    esac
    shift words
    (( CURRENT-- ))
    case $key in
@OPTIONS@
    esac
}
if [[ $funcstack[1] == _holdfast ]]; then
    _holdfast "$@"
else
    compdef _holdfast holdfast
fi"""


def zsh(found: list[Command]) -> str:
    """The script for zsh: to be put into a directory of `fpath` as `_holdfast`, or evaluated."""
    seconds, options = [], []
    for first, words in groups(found).items():
        pair = "" if first in _ONE_KEY else "\n            shift words; (( CURRENT-- ))"
        name = "" if first in _ONE_KEY else f'\n            key="{first} $words[2]"'
        seconds.append(
            f"        ({first})\n            if (( CURRENT == 3 )); then\n"
            f"                compadd -- {' '.join(words)}\n                return\n            fi{pair}{name} ;;"
        )
    for command in found:
        lines = " \\\n                ".join(["_arguments -s", *map(_zsh_option, command.options), "'*:file:_files'"])
        options.append(f"        ({_pattern(command)})\n            {lines} ;;")
    return _filled(
        _ZSH, found, COMMANDS="\n".join(f"            {quote(f'{n}:{_colons(s)}')}" for n, s in _FIRST.items()),
        TOP=" ".join(map(_zsh_option, TOP)), SECONDS="\n".join(seconds), OPTIONS="\n".join(options),
    )  # fmt: skip


def _colons(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_option(option: Option) -> str:
    what = "[" + _colons(option.help).replace("[", "\\[").replace("]", "\\]") + "]"
    if option.metavar is not None:
        given = {"files": "_files", "processes": "_pids", "": " "}[option.takes]
        what += f":{option.metavar}:" + (f"({' '.join(option.choices)})" if option.choices else given)
    others = " ".join(option.flags)
    forms = [f"{flag}=" if flag.startswith("--") and option.metavar is not None else flag for flag in option.flags]
    return " ".join(quote(f"({others}){form}{what}") for form in forms)


# -- fish --------------------------------------------------------------------------------------------------------------

_FISH = r"""# fish completion for holdfast; made by: holdfast completion fish
function __holdfast_at --description 'whether these are the words in front'
    set -l tokens (commandline -opc)
    set -e tokens[1]
    test (count $tokens) -ge (count $argv); or return 1
    set -l front $tokens[1..(count $argv)]
    test "$argv" = "$front"; and not __holdfast_behind
end
function __holdfast_first --description 'whether the command is still to come'
    test (count (commandline -opc)) -eq (math 1 + (count $argv)); and begin
        test (count $argv) -eq 0; or __holdfast_at $argv
    end
end
function __holdfast_before --description 'how many words stand before another command; next, if its name may be typed'
    set -l tokens (commandline -opc)
    contains -i -- -- $tokens; and return
    contains -- "$tokens[2]" @LOOSE@; or return 1
    set -l lock
    set -l at 3
    while test $at -le (count $tokens)
        set -l word $tokens[$at]
        switch $word
            case -c --command '--command=*'
                return 1
            case '-*'
                string match -q -- '--*' $word; or set word -(string sub -s -1 -- $word)
                contains -- $word @TAKES@; and set at (math $at + 1)
            case '*'
                test -n "$lock"; and echo (math $at - 1); and return
                set lock $at
        end
        set at (math $at + 1)
    end
    test -n "$lock"; and test $at -eq (math 1 + (count $tokens)); and echo next
end
function __holdfast_behind --description 'whether the words of another command are typed'
    string match -qr -- '^[0-9]+$' (__holdfast_before)
end
function __holdfast_next --description 'whether the name of another command is typed'
    test "$(__holdfast_before)" = next; and string match -qr -- '^[^-]' (commandline -ct)
end
function __holdfast_command --description 'complete the words of another command'
    set -l tokens (commandline -opc)
    set -e tokens[1..(__holdfast_before)]
    complete -C (string join ' ' -- (string escape -- $tokens) (commandline -ct))
end
complete -c holdfast -f
complete -c holdfast -n __holdfast_behind -a '(__holdfast_command)'
complete -c holdfast -n __holdfast_next -a '(complete -C (commandline -ct))'"""


def fish(found: list[Command]) -> str:
    """The script for fish."""
    lines = [_filled(_FISH, found)]
    for name, summary in _FIRST.items():
        lines.append(f"complete -c holdfast -n __holdfast_first -a {name} -d {_fish(summary)}")
    lines += [_fish_option("__holdfast_first", option) for option in TOP]
    for first, words in groups(found).items():
        lines.append(f"complete -c holdfast -n '__holdfast_first {first}' -a {_fish(' '.join(words))}")
    for command in found:
        here = f"__holdfast_at {command.name}"
        lines += [_fish_option(here, option) for option in command.options]
        if not command.words or command.text:
            files = f"{here}; and not __holdfast_first {command.name}" if command.text else here
            lines.append(f"complete -c holdfast -n '{files}' -F")
    return "\n".join(lines)


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(condition: str, option: Option) -> str:
    words = ["complete -c holdfast", f"-n '{condition}'"]
    words += [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.metavar is not None:
        given = {"files": "-r -F", "processes": "-x -a '(__fish_complete_pids)'", "": "-x"}[option.takes]
        words.append(f"-x -a {_fish(' '.join(option.choices))}" if option.choices else given)
    return " ".join([*words, f"-d {_fish(option.help)}"])
