"""What may be typed after `holdfast completion`."""

from __future__ import annotations

from .arguments import Parser

SHELLS = ("bash", "zsh", "fish")
_NOTE = """\
For one session:
  bash: eval "$(holdfast completion bash)"
  zsh:  eval "$(holdfast completion zsh)"          (after compinit)
  fish: holdfast completion fish | source

For good:
  bash: holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  zsh:  holdfast completion zsh > DIR/_holdfast    (DIR is in $fpath)
  fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish

exit status: 0 printed; 2 usage; 3 it could not be written"""


def parser(name: str) -> Parser:
    """The command's parser."""
    made = Parser(
        f"holdfast {name}",
        "[-h] SHELL",
        "Print what makes SHELL complete commands, options, protocols and lock files.",
        _NOTE,
    )
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    return made
