"""The folder of a site without a browser: its bytes, its size, and what it keeps inside the page."""

import dataclasses
import importlib
import itertools
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.figure import Figure

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis
from k3ablate.report.exhibits import Exhibits, GroupGrowth, Growth, ReadWeights, uniform_routing
from k3ablate.report.figures import loss_picture
from k3ablate.report.pictures import rendered
from k3ablate.report.site import PAGES, SiteContent, cells, charts, payloads, stack, write_site
from k3ablate.report.site.images import smaller, themed_images
from k3ablate.report.standing import published_standing
from k3ablate.report.style import DARK, LIGHT, Theme

MOST_BYTES = 5_000_000
LINE = "\u2028"


@pytest.fixture(scope="module")
def contents() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "browser"))
        yield importlib.import_module("contents")


@pytest.fixture(scope="module")
def folder(contents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual site."""
    folder = tmp_path_factory.mktemp("site")
    write_site(contents.content(), folder)
    return folder


def test_the_same_content_gives_the_same_bytes(contents: ModuleType, tmp_path: Path) -> None:
    hostile = contents.hostile()
    content = dataclasses.replace(hostile, pictures={"overview": hostile.pictures["overview"]})
    first, second = (write_site(content, tmp_path / name) for name in ("one", "two"))
    assert first[0].name == "index.html"
    assert [path.relative_to(tmp_path / "one") for path in first] == [
        path.relative_to(tmp_path / "two") for path in second
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_site_of_a_factorial_stays_under_five_megabytes(contents: ModuleType, tmp_path: Path) -> None:
    components = ("attention", "feed_forward", "residual", "balancing")
    arms = ["+".join(["k2", *chosen]) for count in range(5) for chosen in itertools.combinations(components, count)]
    content = contents.content(arms, [f"token {number}" for number in range(256)])
    pictures = {page.key: tuple(contents.picture(f"{page.key}-{number}", arms) for number in range(2))
                for page in PAGES[:5]}  # fmt: skip
    files = write_site(dataclasses.replace(content, pictures=pictures), tmp_path)
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert {path.suffix for path in files if path.parent.name == "figures"} == {".svg", ".csv"}


def test_no_page_names_another_host_or_holds_a_script_or_a_style(folder: Path) -> None:
    for page in PAGES:
        text = (folder / page.file).read_text()
        assert re.findall(r"(?:src|href)=\"(?:https?:)?//", text) == []
        assert re.findall(r"<style|\sstyle=|\son\w+=|<script>", text) == []
        assert "default-src 'none'" in text


def test_every_link_of_the_site_leads_to_a_file_of_it(folder: Path) -> None:
    for page in PAGES:
        text = (folder / page.file).read_text()
        for target in re.findall(r'(?:src|href)="([^"]+)"', text):
            file, _, anchor = target.partition("#")
            assert (folder / file).is_file() if file else f'id="{anchor}"' in text, (page.key, target)


def test_what_is_embedded_cannot_leave_its_element() -> None:
    value = {"</script>": f"<!--&{LINE}", "numbers": [1.5, float("nan"), float("inf"), None, True]}
    text = str(payloads.embedded(value))
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"</script>": f"<!--&{LINE}", "numbers": [1.5, None, None, None, True]}


def test_a_page_without_anything_says_how_to_get_it(contents: ModuleType, tmp_path: Path) -> None:
    write_site(contents.diverged(), tmp_path)
    for page in PAGES:
        text = (tmp_path / page.file).read_text()
        assert ('class="absent"' in text) == (page.key != "tables"), page.key
        assert "application/json" not in text


def test_a_page_that_does_not_exist_is_refused(contents: ModuleType) -> None:
    with pytest.raises(AssertionError, match="no such page"):
        dataclasses.replace(contents.content(), notes={"nowhere": ("lost",)})


def test_a_smaller_picture_has_the_same_glyphs(analysis: Analysis) -> None:
    svg = rendered(loss_picture(analysis), ("svg",))["svg"]
    small = smaller(svg)
    assert len(small) < 0.95 * len(svg)
    assert small.count(b"scale(0.015625)") == svg.count(b"scale(0.015625)") > 0
    numbers = [float(number) for number in re.findall(rb"-?\d+\.\d+", svg)]
    rounded = [float(number) for number in re.findall(rb"-?\d+\.\d+", small)]
    assert max(abs(a - b) for a, b in zip(numbers, rounded, strict=True)) <= 0.01


def scatter(theme: Theme) -> Figure:
    """Four thousand points."""
    figure = Figure(figsize=(7.0, 4.2))
    figure.subplots().scatter(*np.random.default_rng(0).random((2, 4000)), s=4, color=theme.ink)
    return figure


def test_a_picture_of_many_points_is_a_png_at_two_pixels_each(contents: ModuleType) -> None:
    few = contents.picture("few", ["k2", "k3"])
    many = dataclasses.replace(few, name="many", draw=scatter)
    assert [image.file for image in themed_images(few)] == ["few.light.svg", "few.dark.svg"]
    for image in themed_images(many):
        assert image.file.endswith(".png")
        assert (image.width, image.height) == (672, 403)
        assert struct.unpack(">II", image.content[16:24]) == (1344, 806)
        assert len(image.content) < len(rendered(many, ("svg",))["svg"])


def test_the_page_has_the_colours_of_the_pictures(folder: Path) -> None:
    text = (folder / "assets" / "colours.css").read_text()
    assert f"--paper: light-dark({LIGHT.paper}, {DARK.paper});" in text
    assert all(f"--series-{index}: light-dark({colour}, " in text for index, colour in enumerate(LIGHT.colours))


def test_columns_of_numbers_are_known_as_such() -> None:
    found = cells.Cells("", ("a", "b", "c", "d"), (("1", "2.5", "–", "1.7×"), ("x", "1e-05", "4,096", "one")))
    assert found.numeric == (False, True, True, False)
    assert cells.Cells("", ("a", "b"), ()).numeric == (False, False)


def test_growth_leaves_a_group_that_is_not_there_off_a_log_scale() -> None:
    found = charts.growth(Growth("old", "new", (GroupGrowth("kda", 0, 5), GroupGrowth("dense", 2, 3))))
    assert [len(found[scale]["data"]["values"]) for scale in ("log", "linear")] == [3, 4]
    rows = cells.of_growth(Growth("old", "new", (GroupGrowth("kda", 0, 5), GroupGrowth("dense", 2, 3)))).rows
    assert rows == (("kda", "–", "5", "–"), ("dense", "2", "3", "1.50×"), ("total", "2", "8", "4.00×"))


def test_a_heat_map_has_a_cell_per_read_and_source() -> None:
    found = ReadWeights("run", "source", ("first", "output"), ("embedding", "block 1"), ((1.0,), (0.25, 0.75)))
    rows = charts.read_weights([found])["run"]["data"]["values"]
    assert [(row["read"], row["source"], row["weight"]) for row in rows] == [
        ("first", "embedding", 1.0), ("output", "embedding", 0.25), ("output", "block 1", 0.75),
    ]  # fmt: skip
    assert cells.of_read_weights(found).rows == (("first", "1.000", ""), ("output", "0.250", "0.750"))


def test_a_stack_is_cut_at_its_blocks(contents: ModuleType) -> None:
    k3, k2 = contents.exhibits(["k2"], ["token"]).stacks
    groups = stack.groups(k3)
    assert [len(group.columns) for group in groups] == [12] * 7 + [9]
    assert [groups[0].label, groups[-1].label] == ["block 1 · 1–12", "block 8 · 85–93"]
    assert [group.is_block for group in stack.groups(k2)] == [False] * 6
    assert stack.summary(k3).startswith("93 decoder layers: 69 KDA, 24 gated MLA; 1 dense, 92 latent MoE; block")


def test_a_drawn_routing_says_so_and_repeats() -> None:
    first, second = (uniform_routing("drawn", 896, 16, 12, seed=3) for _ in range(2))
    assert first == second
    assert first.is_drawn
    assert "seed 3" in first.source
    assert sum(first.pairs) == 12 * 16
    assert all(len(set(token.experts)) == 16 for token in first.tokens)


def test_published_scores_are_those_of_the_table(contents: ModuleType, tmp_path: Path) -> None:
    found = published_standing(contents.PUBLISHED)
    assert found is not None
    lines = (contents.PUBLISHED / "k3_table2.csv").read_text().splitlines()
    assert len(found.scores) == len(lines) - 1
    assert found.scores[0].model == "Kimi K3"
    shown = [cell for category in charts.categories(found)[1:] for row in cells.of_standing(found, category).rows
             for cell in row[1:] if cell != "–"]  # fmt: skip
    assert sorted(shown, key=float) == sorted((line.rpartition(",")[2] for line in lines[1:]), key=float)
    assert published_standing(tmp_path) is None
    (tmp_path / "k3_table2.csv").write_text("category,benchmark\n")
    with pytest.raises(InputError, match="model"):
        published_standing(tmp_path)


def test_exhibits_are_optional(contents: ModuleType) -> None:
    assert payloads.architecture(Exhibits()) == {}
    assert payloads.standing(Exhibits()) == {}
    assert set(payloads.architecture(contents.content().exhibits)) == {
        "growth", "links", "read-weights", "routing", "parallel", "functions", "histograms",
    }  # fmt: skip
    assert isinstance(contents.single(), SiteContent)
