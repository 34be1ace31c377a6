"""How the state of a run looks on a screen. Every text is literal, none is read as markup.

    header, progress, facts, GPUs │ a line per running trial │ what happened last

A picture is a list of lines that fit: no line is wider than the screen, and while the run goes on
there are not more of them than it has rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from supermax.display import text
from supermax.display.cells import finished_table, table
from supermax.display.state import REACHED, Happening, RunState
from supermax.display.strokes import bar, cut, fold
from supermax.memory.devices import Gpu
from supermax.words import clock, counted, one_line

LABEL = 8  # cells for the names of facts
MOST_GPUS = 4
NOTICE_LINES = 2  # a notice is shown whole when the run is over
LEAST_EVENTS = 4  # lines that running trials leave for what happened
MOST_EVENTS = 12
LAST_EVENTS = 6  # once the run is over
STYLES = {"best": "green", "fault": "red", "stop": "yellow", "notice": "yellow"}
MARKS = {"best": "*", "fault": "x", "stop": ".", "notice": "!"}


@dataclass(frozen=True)
class Picture:
    """The state, to be printed on a console of any width."""

    state: RunState
    height: int

    def lines(self, width: int, ascii: bool = False) -> list[Text]:
        lines = _lines(self.state, max(1, width), self.height, ascii)
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
            line.truncate(max(1, width), overflow="crop")  # for screens of a few cells
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width, options.ascii_only)


def draw(state: RunState, height: int = 24) -> Picture:
    """The whole view for a screen of that height."""
    return Picture(state, height)


def _lines(state: RunState, width: int, height: int, ascii: bool) -> list[Text]:
    if state.started_at is None:
        return [Text(cut("supermax: opening the study", width, ascii), style="dim")]
    top = [_header(state, width, ascii), _progress(state, width, ascii)]
    top += _facts(state, width, ascii)
    if state.ended_at is not None:
        return top + _apart(_events(state, width, None, ascii))
    top += _gpus(state.readings.gpus, width, ascii)
    # One line stays empty: where the terminal echoes what is typed, ^C above all.
    room = height - len(top) - 1
    events = _events(state, width, MOST_EVENTS, ascii)
    least = min(LEAST_EVENTS, room // 3)
    for_events = min(len(events), max(least, room - len(state.running) - 3))
    trials: list[Text] = []
    if state.running:
        # Two blank lines and the head of the table are the others.
        rows = max(1, room - 2 - (for_events + 1 if for_events else 0))
        trials = _apart(table(state, width, rows, ascii))
    elif state.starting:
        trials = _apart([Text(cut(text.STARTING, width, ascii), style="dim")])
    left = room - len(trials) - 1
    happened = _apart(events[-left:] if left > 0 else [])
    spare = room - len(trials) - len(happened) - 1
    shown = top + trials + _apart(finished_table(state, width, spare, ascii)) + happened
    return [*shown[: max(1, height - 1)], *([Text("")] if height > 1 else [])]


def _apart(lines: list[Text]) -> list[Text]:
    return [Text(""), *lines] if lines else []


def _header(state: RunState, width: int, ascii: bool) -> Text:
    name = one_line(state.study_name)
    right = (
        f"{counted(state.workers, 'worker')}, {clock(state.elapsed())} elapsed"
        if state.workers
        else ""
    )
    line = Text(cut(name, max(1, width - len(right) - 1), ascii), style="bold")
    return _pushed_right(line, Text(right, style="dim"), width)


def _progress(state: RunState, width: int, ascii: bool) -> Text:
    finished = text.finished_of(state)
    if state.target is None:
        return Text(cut(finished, width, ascii))
    eta = state.eta()
    left = f", {clock(eta)} left" if eta is not None and eta > 0 else ""
    # Room for the estimate from the start, so that the bar does not change its length.
    later = 14 if state.ended_at is None else 0
    room = width - max(len(finished) + later, len(finished + left)) - 1
    share = state.done() / max(1, state.target)
    line = Text("")
    if room > 4:
        line.append(bar(share, room, ascii), "green" if share >= 1 else "cyan")
    return _pushed_right(line, Text(finished + left), width)


def _pushed_right(left: Text, right: Text, width: int) -> Text:
    room = width - left.cell_len
    if right.cell_len + bool(left.plain) > room:
        right = Text(cut(right.plain, max(0, room - bool(left.plain)), True), style=right.style)
    blank = " " * max(0, room - right.cell_len)
    return Text.assemble(left, blank, right)


def _facts(state: RunState, width: int, ascii: bool) -> list[Text]:
    label = "trials" if state.several_objectives else "best"
    facts = [(label, text.best_so_far(state), "green")]
    if state.faults:
        retries = f"; {counted(state.retries, 'retry', 'retries')}" if state.retries else ""
        facts.append(("faults", text.fault_counts(state) + retries, "red"))
    if state.waiting:
        facts.append(("waiting", f"{counted(len(state.waiting), 'trial')} to be retried", ""))
    if state.ended_at is not None:
        good = state.ending == REACHED
        facts.append(("ended", one_line(state.ending or "early"), "" if good else "yellow"))
    elif state.stopping is not None:
        facts.append(("stopping", one_line(state.stopping), "yellow"))
    lines = []
    for name, said, style in facts:
        for first, line in enumerate(fold(said, width - LABEL - 1, 3)):
            lines.append(_labelled("" if first else name, Text(line, style=style), width, ascii))
    return lines


def _labelled(label: str, said: Text, width: int, ascii: bool) -> Text:
    line = Text(cut(f"{label:<{LABEL}} ", width, ascii), style="dim")
    room = width - LABEL - 1
    if said.cell_len > room or ascii:
        said = Text(cut(said.plain, room, ascii), style=said.style)
    return Text.assemble(line, said)


def _gpus(gpus: tuple[Gpu, ...], width: int, ascii: bool) -> list[Text]:
    lines = []
    shown = gpus if len(gpus) <= MOST_GPUS else gpus[: MOST_GPUS - 1]
    length = 16 if width < 120 else 32
    for gpu in shown:
        share = gpu.used / max(1, gpu.total)
        busy = "" if gpu.busy is None else f"{gpu.busy:4.0%} busy"
        said = Text(bar(share, length, ascii), style="red" if share >= 0.95 else "cyan")
        said.append(f" {text.of(gpu.used, gpu.total):>11}  {busy:<9}  ", "none")
        said.append(cut(one_line(gpu.name), max(0, width - LABEL - length - 27), ascii), "dim")
        lines.append(_labelled(f"gpu {gpu.index}", said, width, ascii))
    if len(gpus) > len(shown):
        lines.append(_labelled("", Text(f"and {len(gpus) - len(shown)} more"), width, ascii))
    return lines


def _events(state: RunState, width: int, most: int | None, ascii: bool) -> list[Text]:
    """At most so many lines, the newest last; None: the run is over, notices are shown whole."""
    lines: list[Text] = []
    events = state.events()
    if most is None:
        notable = {id(event) for event in [e for e in events if e.kind != "notice"][-LAST_EVENTS:]}
        events = [e for e in events if e.kind == "notice" or id(e) in notable]
    for event in reversed(events):
        block = _event(event, width, 1000 if most is None else NOTICE_LINES, ascii)
        if most is not None and len(lines) + len(block) > most:
            break
        lines = block + lines
    return lines


def _event(event: Happening, width: int, most: int, ascii: bool) -> list[Text]:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    times = f" ({event.count} times)" if event.count > 1 else ""
    head = f"{at} {MARKS.get(event.kind, ' ')} " if width >= 30 else f"{MARKS[event.kind]} "
    style = STYLES.get(event.kind, "")
    # A fault comes again and again; its message is in the trial's folder.
    folded = fold(one_line(event.text) + times, width - len(head), most)
    folded = folded if event.kind == "notice" else [" ".join(folded)]
    lines = []
    for number, said in enumerate(folded):
        line = Text(head if number == 0 else " " * len(head), style="dim")
        line.append(cut(said, max(0, width - cell_len(head)), ascii), style)
        lines.append(line)
    return lines
