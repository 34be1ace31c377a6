"""A program that tests kill and run again: python -m tests.trainer.programs FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import supermax
from tests.trainer import tiny


class Waits(tiny.Marks):
    """In the third epoch, write the pid of the process and wait for a file `go`."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        super().on_epoch_begin(args, state, control)
        if round(state.epoch or 0) == 2 and not (self.file.parent / "go").exists():
            (self.file.parent / "pid.new").write_text(str(os.getpid()))
            (self.file.parent / "pid.new").rename(self.file.parent / "pid")
            while not (self.file.parent / "go").exists():
                time.sleep(0.01)


def main(folder: Path) -> None:
    trainer = tiny.trainer(
        folder, callbacks=[Waits(folder / "marks")], arguments={"num_train_epochs": 4}
    )
    best = supermax.hyperparameter_search(
        trainer,
        hp_space=tiny.space,
        compute_objective=tiny.loss,
        n_trials=1,
        run_dir=folder / "run",
        progress=False,
    )
    print(best.run_id, best.objective)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
