"""The step of a training run that writes its questions' missing rephrasings, before the first update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import Rows, load_rows
from branchwise.errors import ConfigError, WorkStopped
from branchwise.rephrase.display import Display, report
from branchwise.rephrase.files import Paths, write_records
from branchwise.rephrase.run import rephrase

if TYPE_CHECKING:
    from branchwise.train.trainer import Trainer


def rephrased(trainer: Trainer, data: Any) -> Rows:
    """The training rows with up to `tree.rephrasings` checked rephrasings each; the main process writes them.

    The store, records and rejections lie in `rephrase.cache`, by default beside the run's folder, which is moved aside
    where a new run takes its place: one that is begun again asks for nothing that is there.

    Raises:
        ConfigError: the writer, the data or the store cannot be had.
        WorkStopped: a quota, a budget or a dead endpoint ended the work.
    """
    config, n, world = trainer.config.rephrase, trainer.config.tree.rephrasings, trainer.world
    assert config is not None
    table = load_rows(data)
    texts: list[dict[int, list[str]] | Exception] = []
    if world.is_main:
        try:
            texts = [_written(trainer, table, n, config)]
        except (ConfigError, WorkStopped) as error:  # told to all: the others wait for what comes
            texts = [error]
    (came,) = world.gather(texts)
    if isinstance(came, Exception):
        raise came
    rows = [{**row, "rephrasings": came.get(number, [])} for number, row in enumerate(table.rows, start=1)]
    return replace(table, rows=rows)


def _written(trainer: Trainer, table: Rows, n: int, config: RephraseConfig) -> dict[int, list[str]]:
    """The rephrasings of each row, by its number from 1."""
    paths = Paths(Path(config.cache or f"{trainer.config.train.output_dir}-rephrase") / "train.jsonl")
    paths.out.parent.mkdir(parents=True, exist_ok=True)
    with Display(len(table.rows)) as display:
        result = rephrase(table, n, config, paths.store, _policy(trainer), display.update)
    trainer.notes += report(result, n)
    write_records(paths, result.outcomes)
    if result.stopped:
        raise WorkStopped(
            f"rephrase: stopped: {result.stopped}; replies are kept in {paths.store}: begin the run again to go on"
        )
    return {outcome.item.row: outcome.texts for outcome in result.outcomes}


def _policy(trainer: Trainer) -> Any:
    """The trainer's own engine as a writer, where the config names `policy`."""
    r = trainer.config.rephrase
    assert r is not None
    if "policy" not in (r.writer, r.judge, r.solver):
        return None
    from branchwise.rephrase.local import of_engine

    kwargs = trainer.config.data.chat_template_kwargs | r.request.get("chat_template_kwargs", {})
    return of_engine("policy", trainer.engine, trainer.policy.processing_class, kwargs)
