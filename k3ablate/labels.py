"""How does an experiment call its runs, as a file? What a table needs besides records, for where the plan is not.

A store of runs keeps it beside the records, so that a table can be collected on another machine. Whatever is read is
checked like an experiment's own names, because columns of the table, and text on a terminal, are made from it.
"""

from collections.abc import Iterable
from typing import Self

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from k3ablate.config import Closed, InputError
from k3ablate.experiment import ComponentName, ExperimentName
from k3ablate.model.sizes import Name
from k3ablate.records import COLUMNS, Label, Varied


class _LabelLine(Closed):
    """A `records.Label`, checked."""

    arm: Name
    size: Name
    seed: NonNegativeInt
    digest: str = Field(pattern=r"^([0-9a-f]{16})?$")  # none where the corpus was not built
    levels: dict[ComponentName, Name]
    mismatch: float
    varied: Varied = Varied.BOTH

    @model_validator(mode="after")
    def _components_hide_no_results(self) -> Self:
        hidden = self.levels.keys() & set(COLUMNS)
        if hidden:
            raise ValueError(f"a component is called {min(hidden)}, like a column of results")
        return self


class Labels(Closed):
    """The runs of an experiment, in the order of its plan."""

    experiment: ExperimentName
    experiment_digest: str
    lines: tuple[_LabelLine, ...] = Field(min_length=1)

    @classmethod
    def of(cls, labels: Iterable[Label], experiment_digest: str) -> Self:
        """Those of a plan."""
        found = [*labels]
        lines = [
            _LabelLine(
                arm=label.arm,
                size=label.size,
                seed=label.seed,
                digest=label.digest,
                levels=dict(label.levels),
                mismatch=label.mismatch,
                varied=label.varied,
            )
            for label in found
        ]
        return cls(experiment=found[0].experiment, experiment_digest=experiment_digest, lines=tuple(lines))

    @classmethod
    def read(cls, content: bytes, source: str) -> Self:
        """What `written` wrote; anything else is an InputError that names `source`."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            place = ".".join(map(str, detail["loc"]))
            raise InputError(f"{source}: not the labels of an experiment ({place}: {detail['msg']})") from None

    def written(self) -> bytes:
        """As JSON."""
        return self.model_dump_json(indent=1).encode()

    def labels(self) -> list[Label]:
        """One per planned run."""
        return [
            Label(self.experiment, line.arm, line.size, line.seed, line.digest, line.levels, line.mismatch, line.varied)
            for line in self.lines
        ]
