"""How `top` fills a screen: some of the rows, below their sum and above the keys. Knows no terminal."""

from __future__ import annotations

from .._core.report import printable
from .._operator.findings import DEAD, STALE
from ..model import Value
from .table import Column, Screen, fit, lines
from .top_rows import ORDERS, WAITED_FOR, Row, cells_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Cell

_COLUMNS = (
    Column("STATE", drop=2),
    Column("PID", right=True, drop=3),
    Column("USER", cut="end", least=4, drop=9),
    Column("  HELD", right=True),
    Column("WAITS", right=True, drop=4),
    Column("LONGEST", right=True, drop=1),
    Column("PATH", cut="start", least=16),
    Column("PROTOCOL", drop=8),
    Column("HOST", cut="end", least=6, drop=7),
    Column("COMMAND", cut="end", least=10, drop=5),
    Column("TAG", cut="end", least=8, drop=6),
    Column("WAITERS", cut="end", least=7, drop=10),
)
_PATH, _ALWAYS = 6, 8
"""Which is the path; and how many columns are shown even if nothing is in them."""
_BESIDE_PATH = 8
"""What the narrowest table has besides the path: for how long."""
_FAR = 10**9
_FIT_EVERY = 10.0
"""Seconds for which columns only grow, so that they do not jump whenever a row comes or goes."""


class Scene(Value):
    """What is shown of which rows. `places` are those that are followed, `gone` those of them that are not there."""

    rows: Sequence[Row]
    order: str = "wait"
    backwards: bool = False
    places: Sequence[str] = ()
    gone: Sequence[str] = ()
    polled: bool = False
    rate: float = 0.0
    missed: int = 0


def counts(rows: Sequence[Row]) -> str:
    """How many are held, waiting and stale."""
    stale = sum(row.state in (STALE, DEAD) for row in rows)
    held = sum(row.state not in (STALE, DEAD, WAITED_FOR) for row in rows)
    return f"{held} held, {sum(len(row.waits) for row in rows)} waiting, {stale} stale"


def rate_of(rate: float) -> str:
    number = f"{rate:.0f}" if rate >= 9.95 or not rate else f"{rate:.1f}"
    return f"{number} events/s"


def header(scene: Scene) -> list[str]:
    """Two lines; on a small screen only the first is shown."""
    words = [counts(scene.rows), rate_of(scene.rate)]
    if scene.missed:
        words.append(f"{scene.missed} too short to be seen")
    words.append(f"by {ORDERS[scene.order][0]}" + (", backwards" if scene.backwards else ""))
    if scene.gone:
        named = ", ".join(printable(place, 200) for place in scene.gone)
        return ["; ".join(words), f"not there, and looked for every 10 s: {named}"]
    where = "in " + ", ".join(printable(place, 200) for place in scene.places)
    return ["; ".join(words), f"without events, so looked at 4 times a second: {where}" if scene.polled else where]


def table(rows: Sequence[Row], now: float, on: Screen, floors: dict[int, int] | None = None) -> list[str]:
    """A line of titles and one for each row. `floors`: how wide each column is at least; made larger as it needs."""
    width = on.width
    cells = [cells_of(row, now) for row in rows]
    columns = list(_COLUMNS)
    if width is not None:
        cells = [[_short(cell, width, at) for at, cell in enumerate(row)] for row in cells]
        longest = max((len(row.path) for row in rows), default=0)
        # A path says most where there is room, so it gives way last.
        least = max(1, min(max(16, min(longest, width // 3)), width - _BESIDE_PATH))
        columns[_PATH] = columns[_PATH].replaced(least=least)
    unused = {at for at in range(_ALWAYS, len(columns)) if not any(row[at] for row in cells)}
    unused -= {at for at, size in (floors or {}).items() if size}
    kept = [at for at in range(len(columns)) if at not in unused]
    chosen = [[row[at] for at in kept] for row in cells]
    if floors is None or width is None:
        return lines([columns[at] for at in kept], chosen, on)
    for at in kept:
        sizes = [len(cell if isinstance(cell := row[at], str) else cell[0]) for row in cells]
        floors[at] = max(floors.get(at, 0), *sizes, 0)
    keeps_width: list[Cell] = ["x" * floors[at] for at in kept]
    return lines([columns[at] for at in kept], [*chosen, keeps_width], on)[:-1]


def _short(cell: Cell, width: int, at: int) -> Cell:
    """No more of a long text than a screen can show."""
    if not isinstance(cell, str) or len(cell) <= width:
        return cell
    return cell[-width - 1 :] if at == _PATH else cell[: width + 1]


HELP = """\
q       quit                    Ctrl-L  draw the screen again
s       sort by the next key:   {orders}
r       reverse the order
arrows, j, k, page up, page down, home, end: move

Each row is a lock that is held, stale or waited for.
HELD     for how long; > at least, where its begin was not seen
WAITS    how many processes wait for it
LONGEST  for how long the first of them has waited
STATE    held; dead: the next contender gets it; stale by its protocol's
         rule; elsewhere: on another host or in another container, counts
         as held; malformed: cannot be read, counts as held

Nothing that is shown is touched.""".format(orders=", ".join(ORDERS))


class View:
    """What a person has chosen to see: the order, the part, and the help. Makes the lines of a screen."""

    def __init__(self, order: str, *, backwards: bool = False) -> None:
        self.order = order
        self.backwards = backwards
        self.helping = False
        self._first = 0
        self._body = 1
        self._floors: dict[int, int] = {}
        self._fitted = 0.0

    def press(self, key: str) -> None:
        """What a key means; one that means nothing is passed over. Any key leaves the help."""
        moves = {name: step for names, step in self._moves() for name in names}
        if self.helping:
            self.helping = False
        elif key in ("?", "h"):
            self.helping = True
        elif key == "s":
            names = [*ORDERS]
            self.order = names[(names.index(self.order) + 1) % len(names)]
            self._first = 0
        elif key == "r":
            self.backwards = not self.backwards
            self._first = 0
        elif key in moves:
            self._first += moves[key]

    def _moves(self) -> list[tuple[tuple[str, ...], int]]:
        return [
            (("up", "k"), -1),
            (("down", "j"), 1),
            (("page up", "b"), -self._body),
            (("page down", " "), self._body),
            (("home", "g"), -_FAR),
            (("end", "G"), _FAR),
        ]

    def resized(self) -> None:
        """What was as wide as the old screen needs not be so on the new one."""
        self._floors.clear()

    def frame(self, scene: Scene, now: float, size: tuple[int, int], *, colours: bool) -> list[str]:
        """As many lines as the screen has, none wider than it is."""
        width, height = size
        if not 0 <= now - self._fitted < _FIT_EVERY:
            self._floors.clear()
            self._fitted = now
        on = Screen(width, colours)
        above = header(scene)[: 2 if height >= 8 else 1]
        head = [
            on.paint(fit(line, width), "bold" if at == 0 else "red" if scene.gone else "")
            for at, line in enumerate(above)
        ]
        foot = height >= 6
        room = height - len(head) - foot
        self._body = max(1, room - 1)
        self._first = max(0, min(self._first, len(scene.rows) - self._body))
        if self.helping:
            body = [fit(line, width) for line in HELP.splitlines()]
        elif scene.rows:
            shown = scene.rows[self._first : self._first + self._body]
            body = table(shown, now, on, self._floors)
        else:
            body = ["", fit("nobody holds or waits for a lock here", width)]
        body = [*body[: max(0, room)], *[""] * (room - len(body))]
        return [*head, *body, *([on.paint(self._foot(scene, width), "dim")] if foot else [])][:height]

    def _foot(self, scene: Scene, width: int) -> str:
        keys = "q quit  s sort  r reverse  ? help"
        total = len(scene.rows)
        if self.helping:
            keys = "any key goes back"
        elif total > self._body:
            keys = f"{self._first + 1}-{min(total, self._first + self._body)} of {total}  {keys}"
        return fit(keys, width)
