"""TensorBoard: a folder of event files per trial, and the hparams plugin.

FOLDER/<study>/trial-0007.<key>/events.out.tfevents.<n>.supermax

The files are written with TensorBoard's own protocol buffers, without torch. Each process starts
another file, since a kill may have torn the last record of the one before; values that a file
has already are not written again.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supermax._util.files import write_whole
from supermax.engine.storage.locations import Location
from supermax.errors import UserError
from supermax.results.tracking.backend import (
    FAILED,
    FINISHED,
    KILLED,
    PREFIX,
    RUNNING,
    MetricPoint,
    Missing,
    NewRun,
    Run,
    translated,
)
from supermax.results.tracking.destination import TENSORBOARD, Destination
from supermax.results.tracking.names import digest, stored_text

_ENDED = f"{PREFIX}ended"
"""Tag of the last record of a run."""
_PARAMS = "_hparams_/session_start_info"
_END = "_hparams_/session_end_info"
_HPARAMS = "hparams"
_VERSION = 0
_FILES = "events.out.tfevents.*"
_KEY = 8  # characters of the key in the name of a folder


def tensorboard_destination(folder: str | None, home: Location) -> Destination:
    """Return a folder as destination; by default `tensorboard` beside the study's file."""
    beside = home.file.parent if home.file is not None else home.run_dir / "tracking"
    path = Path(folder).expanduser().absolute() if folder else beside / "tensorboard"
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file. Name a folder for TensorBoard: tensorboard:FOLDER.")
    return Destination(str(path), str(path), file=path, kind=TENSORBOARD)


@dataclass
class _Events:
    """Event files of a run: what is in them, and the file that this process appends to."""

    folder: Path
    values: dict[tuple[str, int], float] = field(default_factory=dict)
    """Scalars by tag and step."""
    texts: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    status: str = RUNNING
    path: Path | None = None
    """File that this process appends to; None: it has written nothing yet."""


class TensorBoard:
    """Backend of TensorBoard. An experiment and a run are folders; their ids are the paths."""

    def __init__(self, destination: Destination) -> None:
        self._root = Path(destination.uri)
        self._open: dict[str, _Events] = {}

    def connect(self) -> None:
        with translated("TensorBoard cannot be imported"):
            import tensorboard.compat.proto.event_pb2
            import tensorboard.plugins.hparams.plugin_data_pb2  # noqa: F401
        with translated(str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)

    def experiment(self, name: str) -> str:
        return str(self._root / _folder_name(name))

    def find(self, experiment: str, key: str) -> list[Run]:
        with translated(experiment):
            found = sorted(Path(experiment).glob(f"*.{key[:_KEY]}"))
            return [run for path in found if (run := self.get(str(path))) is not None]

    def create(self, experiment: str, new: NewRun) -> Run:
        name = re.sub(r"(\d+)", lambda found: found[1].zfill(4), new.name).replace(" ", "-")
        name = "study" if new.parent is None else name
        folder = Path(experiment) / f"{name}.{new.key[:_KEY]}"
        with translated(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            events = self._events(str(folder))
            self._append(events, list(_new_texts(events, new.tags)))
        return Run(str(folder), RUNNING)

    def get(self, run: str) -> Run | None:
        with translated(run):
            if not Path(run).is_dir():
                self._open.pop(run, None)
                return None
            return Run(run, self._events(run).status)

    def delete(self, run: str) -> None:
        with translated(run):
            self._open.pop(run, None)
            shutil.rmtree(run, ignore_errors=True)

    def history(self, run: str, key: str) -> dict[int, float]:
        with translated(run):
            events = self._events(run)
            return {step: value for (tag, step), value in events.values.items() if tag == key}

    def log(
        self,
        run: str,
        params: Mapping[str, object],
        points: Sequence[MetricPoint],
        tags: Mapping[str, str],
    ) -> None:
        with translated(run):
            if not Path(run).is_dir():
                self._open.pop(run, None)
                raise Missing(f"{run} is gone")
            events = self._events(run)
            events.params |= params
            records = []
            for point in sorted(points, key=lambda point: point.step):
                known = events.values.get((point.key, point.step))
                if known is None or not _same(known, point.value):
                    records.append(_record(point.time, point.step, _scalar(point)))
                    events.values[point.key, point.step] = point.value
            self._append(events, [*records, *_new_texts(events, tags)])

    def upload(self, run: str, name: str, content: str) -> None:
        with translated(run):
            write_whole(Path(run) / name, content, shared=True)

    def end(self, run: str, status: str, at: int | None) -> None:
        """Write parameters and status for the hparams plugin, which reads them once."""
        with translated(run):
            events, summaries = self._events(run), []
            if events.status == RUNNING:
                summaries = _session(Path(run).name, events.params, status, at)
            summaries.append(_text(_ENDED, status))
            self._append(events, [_record(at or 0, 0, summary) for summary in summaries])
            self._open.pop(run, None)

    def resume(self, run: str) -> None:
        """Nothing to do: TensorBoard shows no status of a run."""

    def _events(self, run: str) -> _Events:
        """Return the event files of a run, read once."""
        if run not in self._open:
            self._open[run] = read_events(Path(run))
        return self._open[run]

    def _append(self, events: _Events, records: Sequence[bytes]) -> None:
        """Append records to the file of this process. After an error, such as a full disk, the
        file may be torn: it is read again, and the next records go to another one."""
        if not records:
            return
        try:
            if events.path is None:
                number = len(list(events.folder.glob(_FILES)))  # read in the order of the names
                events.path = events.folder / f"events.out.tfevents.{number:010d}.supermax"
                records = [_record(0, 0, None), *records]
            with events.path.open("ab", buffering=0) as file:
                data = b"".join(records)
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except BaseException:
            self._open.pop(str(events.folder), None)
            raise


def read_events(folder: Path) -> _Events:
    """Read the event files of a run. A torn record ends the file that it is in."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.util.tensor_util import make_ndarray

    found = _Events(folder)
    for path in sorted(folder.glob(_FILES)):
        for record in _records(path.read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                if value.WhichOneof("value") == "simple_value":
                    found.values[value.tag, event.step] = value.simple_value
                elif plugin == "scalars":
                    found.values[value.tag, event.step] = float(make_ndarray(value.tensor))
                elif plugin == "text":
                    found.texts[value.tag] = value.tensor.string_val[0].decode()
    found.status = found.texts.pop(_ENDED, RUNNING)
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an event file: length, its checksum, content, its checksum."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    at = 0
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        content, check = data[at + 12 : at + 12 + size], data[at + 12 + size : at + 16 + size]
        if len(check) < 4 or masked_crc32c(content) != int.from_bytes(check, "little"):
            return
        yield content
        at += 16 + size


def _record(time: int, step: int, summary: Any) -> bytes:
    """Return an event as a record; without a summary, the version that begins a file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = {"file_version": "brain.Event:2"} if summary is None else {"summary": summary}
    event, data = Event(wall_time=time / 1000, step=step, **content), io.BytesIO()
    RecordWriter(data).write(event.SerializeToString())
    return data.getvalue()


def _new_texts(events: _Events, texts: Mapping[str, str]) -> Iterator[bytes]:
    """Yield records of the texts that a run does not have."""
    for name, text in texts.items():
        if events.texts.get(name) != text:
            events.texts[name] = text
            yield _record(0, 0, _text(name, text))


def _scalar(point: MetricPoint) -> Any:
    """Return a scalar with double precision."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_DOUBLE
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    value = TensorProto(dtype=DT_DOUBLE, double_val=[point.value])
    about = create_summary_metadata(point.key, "")
    return Summary(value=[Summary.Value(tag=point.key, metadata=about, tensor=value)])


def _text(name: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    value = TensorProto(
        dtype=DT_STRING, string_val=[text.encode()], tensor_shape=TensorShapeProto()
    )
    about = create_summary_metadata(name, "")
    return Summary(value=[Summary.Value(tag=name, metadata=about, tensor=value)])


def _session(group: str, params: Mapping[str, Any], status: str, at: int | None) -> list[Any]:
    """Return the summaries of the hparams plugin: parameters, and the end of the run."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )

    started = SessionStartInfo(group_name=group)
    for name, value in params.items():
        if isinstance(value, bool):
            started.hparams[name].bool_value = value
        elif isinstance(value, (int, float)):
            started.hparams[name].number_value = value
        else:
            started.hparams[name].string_value = stored_text(value)
    codes = {
        FINISHED: api_pb2.STATUS_SUCCESS,
        FAILED: api_pb2.STATUS_FAILURE,
        KILLED: api_pb2.STATUS_SUCCESS,  # pruned: its values count
    }
    end_time = (at or 0) / 1000
    ended = SessionEndInfo(status=codes.get(status, 0), end_time_secs=end_time)
    pairs: list[tuple[str, dict[str, Any]]] = [
        (_PARAMS, {"session_start_info": started}),
        (_END, {"session_end_info": ended}),
    ]
    found = []
    for tag, part in pairs:
        data = HParamsPluginData(version=_VERSION, **part).SerializeToString()
        plugin = SummaryMetadata.PluginData(plugin_name=_HPARAMS, content=data)
        value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))
        found.append(Summary(value=[value]))
    return found


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _folder_name(study: str) -> str:
    """Return a folder name that is unique to a study's name."""
    name = re.sub(r"[^\w.@~-]+", "-", study, flags=re.ASCII)[:60].strip(".")
    return name if name == study else f"{name}-{digest(study)[:8]}"
