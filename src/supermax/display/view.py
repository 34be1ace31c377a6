"""How the state of a run looks on a screen. Every text is literal, none is read as markup."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from supermax.display import text
from supermax.display.state import RunState
from supermax.engine import events as ev

NOTICE_LENGTH = 150  # two lines of 80 columns; a notice is shown whole when the run is over
FIXED_LINES = 8  # header, bar, head and foot of the running trials, blank lines
LEAST_ROWS = 2


def draw(state: RunState, height: int = 24) -> RenderableType:
    """The whole view for a screen of that height."""
    if state.started_at is None:
        return Text("supermax: opening the study", style="dim")
    facts = _facts(state)
    notices = _notices(state)
    parts: list[RenderableType] = [_header(state), _progress(state), facts]
    if state.running:
        others = FIXED_LINES + facts.row_count + 2 * notices.row_count
        parts += ["", _running(state, max(LEAST_ROWS, height - others))]
    if notices.row_count:
        parts += ["", notices]
    if state.ended_at is None:
        parts.append("")  # where the terminal echoes what is typed, ^C above all
    return Group(*parts)


def _header(state: RunState) -> Table:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    workers = text.plural(state.workers, "worker")
    line.add_row(
        Text(text.clean(state.study_name), style="bold"),
        Text(f"{workers}, {text.duration(state.elapsed())} elapsed", style="dim"),
    )
    return line


def _progress(state: RunState) -> Table:
    line = Table.grid(expand=True, padding=(0, 1))
    finished = text.finished_of(state)
    if state.target is None:
        line.add_row(finished)
        return line
    total = max(1, state.target)
    eta = state.eta()
    left = f", {text.duration(eta)} left" if eta is not None and eta > 0 else ""
    line.add_column(ratio=1)
    # Room for the estimate from the start, so that the bar does not change its length.
    line.add_column(justify="right", no_wrap=True, min_width=len(finished) + 11)
    line.add_row(
        ProgressBar(total=total, completed=min(state.finished, total)), Text(finished + left)
    )
    return line


def _facts(state: RunState) -> Table:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    label = "trials" if state.several_objectives else "best"
    facts.add_row(label, Text(text.best_so_far(state), style="green"))
    if state.faults:
        retries = f"; {text.plural(state.retries, 'retry', 'retries')}" if state.retries else ""
        facts.add_row("faults", Text(text.fault_counts(state) + retries, style="red"))
    if state.last_fault is not None and state.ended_at is None:
        facts.add_row("last fault", _fault(state.last_fault))
    if state.waiting:
        facts.add_row("waiting", Text(f"{text.plural(len(state.waiting), 'trial')} to be retried"))
    if state.ended_at is not None:
        facts.add_row("ended", _ending(state))
    elif state.stopping is not None:
        facts.add_row("stopping", Text(text.clean(state.stopping), style="yellow"))
    return facts


def _ending(state: RunState) -> Text:
    if state.summary is None:
        return Text("early", style="yellow")
    if state.summary.stopped_by is None:
        return Text("the target is reached")
    return Text(f"stopped by {text.clean(state.summary.stopped_by)}", style="yellow")


def _fault(fault: ev.FaultSeen) -> Text:
    said = f"trial {fault.number}, {fault.kind}; {fault.decision}; {fault.message}"
    return Text(text.clean(said), no_wrap=True, overflow="ellipsis")


def _running(state: RunState, rows: int) -> Group:
    """A line per trial, in columns as wide as their numbers get, so that nothing jumps about.

    Lines of text, because rich takes milliseconds to lay out a table of this size.
    """
    now = state.clock()
    trials = sorted(state.running.values(), key=lambda trial: trial.number)
    head = ("running", "attempt", "cell", "elapsed", "last step", "value")
    lines = [Text(_columns(*head), style="dim", no_wrap=True, overflow="ellipsis")]
    for trial in trials[:rows]:
        cells = _columns(
            str(trial.number),
            str(trial.attempt),
            str(trial.cell),
            text.duration(now - trial.since),
            "" if trial.step is None else str(trial.step),
            "" if trial.value is None else text.number(trial.value),
        )
        lines.append(Text(cells, no_wrap=True, overflow="ellipsis"))
    if len(trials) > rows:
        lines.append(Text(f"and {len(trials) - rows} more running", style="dim"))
    return Group(*lines)


def _columns(trial: str, attempt: str, cell: str, elapsed: str, step: str, value: str) -> str:
    return f"{trial:>7}  {attempt:>7}  {cell:>6}  {elapsed:>9}  {step:>10}  {value:>13}".rstrip()


def _notices(state: RunState) -> Table:
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column()
    lines.add_column(overflow="fold")
    for said, count in state.notices.items():
        shown = text.clean(said)
        if state.ended_at is None and len(shown) > NOTICE_LENGTH:
            shown = shown[: NOTICE_LENGTH - 3] + "..."
        times = f" ({count} times)" if count > 1 else ""
        lines.add_row(Text("!", style="yellow"), Text(shown + times, style="yellow"))
    return lines
