"""The verb `compare` over frames and logs: planted ratios, JSON, cautions beside numbers, no training library."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import k3ablate
from k3ablate.answers import as_json
from k3ablate.comparing import compare
from k3ablate.config import InputError

HEAVY = ("torch", "lightning", "mlflow", "datasets")


def log(
    multiplier: float = 1.0, seed: int = 0, num_steps: int = 1000, noise: float = 0.0, **facts: object
) -> pandas.DataFrame:
    """A run that needs `multiplier` times fewer tokens and a fifth more time for each of them."""
    steps = np.arange(0, num_steps, 5)
    tokens = (steps + 1) * 1024.0
    shared = np.random.default_rng(seed).normal(0, noise, len(steps))
    own = np.random.default_rng([seed, int(100 * multiplier)]).normal(0, noise, len(steps))
    loss = 1.5 + 4.0 * (multiplier * (steps + 1.0)) ** -0.25 + shared + own
    seconds = tokens / 1e5 * (1.2 if multiplier > 1 else 1.0)
    frame = pandas.DataFrame({"step": steps, "tokens": tokens, "flops": 6e6 * tokens, "seconds": seconds, "loss": loss})
    return frame.assign(seed=seed, **facts)


def test_the_planted_ratio_comes_back_by_tokens_flops_and_hours() -> None:
    found = compare({"a": log(), "b": log(1.25)})
    assert [reading.run for reading in found.readings] == ["a", "b"] * 4
    for reading in found.readings[1::2]:
        assert reading.ratio["tokens"].value == pytest.approx(1.25, rel=0.02)
        assert reading.ratio["flops"].value == pytest.approx(reading.ratio["tokens"].value, rel=1e-9)
        assert reading.ratio["hours"].value == pytest.approx(1.25 / 1.2, rel=0.02)
    (along,) = found.along
    assert len(along.loss) == 50
    later = [value for loss, value in zip(along.loss, along.ratio["tokens"]["value"], strict=True) if loss < 2.9]
    assert later == pytest.approx([1.25] * len(later), rel=0.02)


def test_seeds_give_intervals_that_hold_what_was_planted() -> None:
    groups = {name: [log(factor, seed, noise=0.05) for seed in range(4)] for name, factor in (("a", 1.0), ("b", 1.25))}
    found = compare(groups, targets=[2.4, 2.6])
    assert [reading.loss for reading in found.readings] == [2.4, 2.4, 2.6, 2.6]
    for reading in found.readings:
        spent = reading.spent["tokens"]
        assert spent.interval is not None
        assert spent.interval.low < spent.value < spent.interval.high
        if reading.run == "b":
            interval = reading.ratio["tokens"].interval
            assert interval is not None
            # twice its half-width misses far more rarely than the interval, whose rate is counted elsewhere
            assert abs(np.log(reading.ratio["tokens"].value / 1.25)) < np.log(interval.high / interval.low)
    assert "paired over seeds 0, 1, 2, 3 (b)" in found.text()


def test_one_seed_has_no_interval_and_a_sentence_that_says_so() -> None:
    found = compare({"a": log(), "b": log(1.25)})
    assert all(reading.spent["tokens"].interval is None for reading in found.readings)
    assert "no interval: one seed on a side does not tell how far seeds lie apart (b)" in found.text()


def test_losses_that_are_not_met_are_said_and_have_no_number() -> None:
    found = compare({"a": log(), "b": log(1.25)}, targets=[2.1, 2.19, 2.3])
    by_loss = {(reading.loss, reading.run): reading for reading in found.readings}
    assert by_loss[2.1, "b"].not_met == "1 of 1 never meet it"
    assert by_loss[2.19, "a"].ratio == by_loss[2.19, "b"].ratio == {}
    assert by_loss[2.19, "b"].spent["tokens"].value > 0
    assert by_loss[2.3, "b"].ratio["tokens"].value > 1


def test_cautions_stand_beside_the_ratio_they_belong_to() -> None:
    rate = 0.5 * (1 + np.cos(np.linspace(0, np.pi, 200)))
    found = compare({"a": log(learning_rate=rate), "b": log(1.25, learning_rate=rate), "c": log(1.25, num_steps=600)})
    text = found.text().splitlines()
    (budgets,) = [line for line in text if "budgets differ" in line]
    mark = budgets.split()[0]
    rows = [line for line in text if line.startswith("2.")]
    assert all((mark in line) == (" c " in line) for line in rows)
    marked = [reading.caution for reading in found.readings if reading.run == "b"]
    assert any("of its peak in the reference" in caution for caution in marked)


def test_three_runs_share_their_losses_and_the_first_is_the_reference() -> None:
    found = compare({"a": log(), "b": log(1.25), "c": log(0.8)})
    lowest = found.readings[0].loss
    assert lowest == pytest.approx(max(one.lowest_loss for one in found.runs))
    assert found.readings[2].ratio["tokens"].value == pytest.approx(0.8, rel=0.02)
    assert found.readings[0].ratio == {}


def test_json_holds_the_same_numbers() -> None:
    found = compare({"a": log(), "b": log(1.25, status="finished")}, by="hours")
    read = json.loads(as_json(found))
    assert read["readings"][1]["ratio"]["hours"]["value"] == found.readings[1].ratio["hours"].value
    assert read["along"][0]["ratio"]["tokens"]["low"][0] is None  # one seed
    assert (read["by"], read["reference"], read["loss_column"], read["window"]) == ("hours", "a", "loss", 0.1)


def test_the_convention_of_flops_is_told() -> None:
    assert "FLOPs: column flops of the logs" in compare({"a": log(), "b": log(1.25)}).text()
    stated = compare({"a": log(flops_convention="6ND"), "b": log(1.25)})
    assert "FLOPs: 6ND" in stated.text()
    with pytest.raises(InputError, match="2 values of flops_convention"):
        compare({"a": log(flops_convention="6ND"), "b": log(1.25, flops_convention="counted")})


def test_validation_losses_are_not_smoothed() -> None:
    frames = {
        "a": log().rename(columns={"loss": "validation_loss"}),
        "b": log(1.25).rename(columns={"loss": "validation_loss"}),
    }
    found = compare(frames)
    assert (found.loss_column, found.window) == ("validation_loss", 0.0)
    assert found.readings[1].ratio["tokens"].value == pytest.approx(1.25, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": [0.0]}, "--target 0.0: write a positive loss"),
        ({"window": 1.0}, "--window 1.0: write a share of the tokens"),
        ({"by": "steps"}, "--by steps: write one of tokens, flops, hours"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare({"a": log(), "b": log(1.25)}, **options)


def test_an_axis_that_a_run_did_not_log_is_refused() -> None:
    with pytest.raises(InputError, match=r"--by hours: b has no column of it that serves; .*--by tokens or flops"):
        compare({"a": log(), "b": log(1.25).drop(columns="seconds")}, by="hours")


def test_one_run_is_no_comparison() -> None:
    with pytest.raises(InputError, match="name two runs or more"):
        compare({"a": log()})


def test_the_package_has_the_verb() -> None:
    assert k3ablate.compare is compare


def test_the_command_reads_logs_without_a_training_library(tmp_path: Path) -> None:
    log().drop(columns="seed").rename(columns={"loss": "nats"}).to_csv(tmp_path / "a.csv", index=False)
    folder = tmp_path / "b"
    folder.mkdir()
    log(1.25).rename(columns={"loss": "nats"}).to_json(folder / "metrics.jsonl", orient="records", lines=True)
    program = (
        "import sys\nfrom k3ablate.cli import main\n"
        f"try:\n    main(['compare', 'a.csv', 'b', '--y', 'nats', '--json'])\nexcept SystemExit as stop:\n"
        f"    print(stop.code, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 []"
    assert json.loads(done.stdout)["readings"][1]["ratio"]["tokens"]["value"] == pytest.approx(1.25, rel=0.02)


def test_twenty_steps_are_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("a", 1.0), ("b", 1.25)):
        log(factor).head(4).to_csv(f"{name}.csv", index=False)
    from k3ablate.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["compare", "a.csv", "b.csv"])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert "a.csv seed 0: too early to rank: 16 optimizer steps" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["a.csv,a.csv", "b.csv"], "compare: a.csv stands there twice; name each run once"),
        (["a.csv", "./a.csv"], "compare: ./a.csv stands there twice (also as a.csv); name each run once"),
    ],
)
def test_one_run_spelt_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("a", 1.0), ("b", 1.25)):
        log(factor).to_csv(f"{name}.csv", index=False)
    from k3ablate.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["compare", *named])
    assert (stopped.value.code, *capsys.readouterr()) == (2, "", f"{message}\n")


@pytest.mark.parametrize(
    ("steps", "num_steps"),
    [(range(1000), 1000), (range(1, 1001), 1000), (range(10, 1001, 10), 1000), (range(9, 1000, 10), 1000)],
)
def test_steps_are_counted_from_where_the_log_counts(steps: range, num_steps: int) -> None:
    first = 0 if steps[0] in (1, 10) else 1  # a log that counts from 1 has a batch of tokens at step 1
    found = log(num_steps=5 * len(steps)).assign(step=list(steps), tokens=[(step + first) * 1024 for step in steps])
    compared = compare({"a": found, "b": found.assign(loss=found["loss"] * 0.99)})
    assert [one.num_steps for one in compared.runs] == [num_steps, num_steps]
