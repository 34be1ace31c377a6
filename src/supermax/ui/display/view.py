"""Layout of the live view. All text is literal, never markup.

    header, progress, facts, GPUs │ running trials │ finished trials │ log

A picture is a list of lines that fit: none is wider than the screen, and until the run ends there
are no more lines than the screen has rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from supermax._util.text import clock, counted, one_line
from supermax.memory.devices import Gpu
from supermax.ui.display import text
from supermax.ui.display.charts import bar, cut, fold
from supermax.ui.display.state import ENDED_ITSELF, REACHED, LogEntry, RunState
from supermax.ui.display.trial_table import finished_table, trial_lines

LABEL = 8  # terminal cells for the names of facts
MOST_GPUS = 4
NOTICE_LINES = 2  # while the run goes on; at its end, notices are shown in full
LEAST_EVENTS = 4  # lines of the log that running trials do not displace
MOST_EVENTS = 12
LAST_EVENTS = 6  # entries other than notices, once the run is over
STYLES = {"best": "green", "fault": "red", "stop": "yellow", "notice": "yellow"}
MARKS = {"best": "*", "fault": "x", "stop": ".", "notice": "!"}


@dataclass(frozen=True)
class Picture:
    """Renderable view of a state, for a console of any width."""

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


def draw_view(state: RunState, height: int = 24) -> Picture:
    """Return the view for a screen with `height` rows."""
    return Picture(state, height)


def _lines(state: RunState, width: int, height: int, ascii: bool) -> list[Text]:
    if state.started_at is None:
        return [Text(cut("supermax: opening the study", width, ascii), style="dim")]
    top = [_header(state, width, ascii), _progress(state, width, ascii)]
    top += _facts(state, width, ascii)
    for place, why in state.out_of_service.items():
        lost = Text(
            cut(one_line(f"{place} is out of service: {why}"), width - LABEL, ascii), "red"
        )
        top.append(_labelled("lost", lost, width, ascii))
    if state.ended_at is not None:
        return top + _apart(_events(state, width, None, ascii))
    top += _gpus(state.readings.gpus, width, ascii)
    # The last line stays empty, because the terminal echoes typed characters there, such as ^C.
    room = height - len(top) - 1
    events = _events(state, width, MOST_EVENTS, ascii)
    least = min(LEAST_EVENTS, room // 3)
    for_events = min(len(events), max(least, room - len(state.running) - 3))
    trials: list[Text] = []
    if state.running:
        # The other rows: two blank lines and the header of the table.
        rows = max(1, room - 2 - (for_events + 1 if for_events else 0))
        trials = _apart(trial_lines(state, width, rows, ascii))
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
    # Reserve room for the estimate from the start, so that the bar keeps its length.
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
    if state.gain is not None:
        over = "; no new trials start" * (state.gain.over and state.ended_at is None)
        facts.append(("gain", f"{state.gain.short}{over}", "yellow" if state.gain.over else ""))
    if state.faults:
        retries = f"; {counted(state.retries, 'retry', 'retries')}" if state.retries else ""
        facts.append(("faults", text.fault_counts(state) + retries, "red"))
    if state.waiting:
        facts.append(("waiting", f"{counted(len(state.waiting), 'trial')} to be retried", ""))
    if state.ended_at is not None:
        good = state.ending in (REACHED, ENDED_ITSELF)
        facts.append(("ended", one_line(state.ending or "early"), "" if good else "yellow"))
    elif state.stopping is not None:
        facts.append(("stopping", one_line(state.stopping), "yellow"))
    lines = []
    for name, value, style in facts:
        for number, line in enumerate(fold(value, width - LABEL - 1, 3)):
            lines.append(_labelled("" if number else name, Text(line, style=style), width, ascii))
    return lines


def _labelled(label: str, value: Text, width: int, ascii: bool) -> Text:
    line = Text(cut(f"{label:<{LABEL}} ", width, ascii), style="dim")
    room = width - LABEL - 1
    if value.cell_len > room or ascii:
        value = Text(cut(value.plain, room, ascii), style=value.style)
    return Text.assemble(line, value)


def _gpus(gpus: tuple[Gpu, ...], width: int, ascii: bool) -> list[Text]:
    lines = []
    shown = gpus if len(gpus) <= MOST_GPUS else gpus[: MOST_GPUS - 1]
    length = 16 if width < 120 else 32
    for gpu in shown:
        share = gpu.used / max(1, gpu.total)
        busy = "" if gpu.busy is None else f"{gpu.busy:4.0%} busy"
        usage = Text(bar(share, length, ascii), style="red" if share >= 0.95 else "cyan")
        usage.append(f" {text.used_of(gpu.used, gpu.total):>11}  {busy:<9}  ", "none")
        usage.append(cut(one_line(gpu.name), max(0, width - LABEL - length - 27), ascii), "dim")
        lines.append(_labelled(f"gpu {gpu.index}", usage, width, ascii))
    if len(gpus) > len(shown):
        lines.append(_labelled("", Text(f"and {len(gpus) - len(shown)} more"), width, ascii))
    return lines


def _events(state: RunState, width: int, most: int | None, ascii: bool) -> list[Text]:
    """Return at most `most` lines of the log, newest last; None: the run is over, and notices are
    shown in full."""
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


def _event(event: LogEntry, width: int, most: int, ascii: bool) -> list[Text]:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    times = f" ({event.count} times)" if event.count > 1 else ""
    head = f"{at} {MARKS.get(event.kind, ' ')} " if width >= 30 else f"{MARKS[event.kind]} "
    style = STYLES.get(event.kind, "")
    # Only notices take several lines: faults are frequent, and their full message is on disk.
    folded = fold(one_line(event.text) + times, width - len(head), most)
    folded = folded if event.kind == "notice" else [" ".join(folded)]
    lines = []
    for number, part in enumerate(folded):
        line = Text(head if number == 0 else " " * len(head), style="dim")
        line.append(cut(part, max(0, width - cell_len(head)), ascii), style)
        lines.append(line)
    return lines
