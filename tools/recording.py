"""What a command shows on a terminal, as an SVG: the pictures of README.md are made from real runs.

    .venv/docs/bin/python tools/recording.py FILE.svg [--columns 100] [--lines FIRST LAST] -- COMMAND...

The command runs on a terminal of its own. The picture has what stands there at its end, as a terminal shows it: lines
that were drawn again are there once. It holds no font and no address of a server.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

# More than a command prints: lines that scroll out of a terminal are lost.
_ROWS = 400
_COLORS = {"brown": "yellow", "default": None}


def record(command: list[str], columns: int) -> Any:
    """Run a command on a terminal, which is shown here as well, and return the screen at its end."""
    screen = pyte.Screen(columns, _ROWS)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color"})  # noqa: S606 - the command of the caller
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not read:
            break
        stream.feed(read)
        os.write(1, read)
    _pid, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the command ended with {os.waitstatus_to_exitcode(status)}")
    return screen


def text_of(screen: Any, part: slice) -> Text:
    """The lines of a screen with their colours, without the empty ones at the end.

    Args:
        part: these of them only.
    """
    lines = []
    for row in range(screen.lines):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        for look, run in itertools.groupby(cells, key=lambda cell: (cell.fg, cell.bold, cell.italics)):
            style = Style(color=_color(look[0]), bold=look[1], italic=look[2])
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines[part])


def _color(name: str) -> str | None:
    return _COLORS.get(name, f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else re.sub("^bright", "bright_", name))


def svg(text: Text, title: str, columns: int) -> str:
    """The picture."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, soft_wrap=True)
    made = console.export_svg(title=title, theme=SVG_EXPORT_THEME)
    without_fonts = re.sub(r"@font-face \{.*?\}\n", "", made, flags=re.DOTALL)
    return without_fonts.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--lines", type=int, nargs=2, metavar=("FIRST", "LAST"), help="only these, counted from 1")
    parser.add_argument("--title", default="", help="above the picture; the command, if there is none")
    separator = sys.argv.index("--")
    arguments, command = parser.parse_args(sys.argv[1:separator]), sys.argv[separator + 1 :]
    first, last = arguments.lines or (1, _ROWS)
    text = text_of(record(command, arguments.columns), slice(first - 1, last))
    title = arguments.title or " ".join(command)
    arguments.file.write_text(svg(text, title, arguments.columns), encoding="utf-8")


if __name__ == "__main__":
    main()
