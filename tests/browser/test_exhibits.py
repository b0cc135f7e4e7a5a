"""What a reader turns changes what it should, by pointer and by keyboard; the numbers are the counter's."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from k3ablate.model.links import link_table

pytestmark = pytest.mark.slow


@pytest.fixture
def page(sites: Callable[[str], Path], watch: Callable[..., Any]) -> Any:
    return watch().open(sites("content").as_uri(), "architecture.html")


def slide(page: Any, name: str, value: int) -> None:
    page.locator(f"#links-{name}").fill(str(value))


def read(page: Any) -> tuple[int, int]:
    """Links in blocks and full, as shown."""
    block, full = (page.locator(f"#links-{name}").inner_text() for name in ("block", "full"))
    return int(block.replace(",", "")), int(full.replace(",", ""))


def test_sliders_read_the_links_of_the_counter(page: Any) -> None:
    for layers, size in ((93, 12), (61, 4), (1, 1), (128, 32), (5, 32)):
        slide(page, "layers", layers)
        slide(page, "size", size)
        by_layer, by_sublayer = link_table(layers, size)
        assert page.locator("#links-layers-value").inner_text() == str(layers)
        for consumer, counts in (("decoder layer", by_layer), ("sublayer", by_sublayer)):
            page.get_by_role("radio", name=consumer).check()
            assert read(page) == (counts.block_with_output, counts.full_with_output)


def test_k3_stands_where_the_sliders_start_and_the_keyboard_moves_them(page: Any) -> None:
    assert read(page) == (1003, 17578)
    chart = page.locator("#links-chart svg")
    before = chart.inner_html()
    page.locator("#links-layers").press("ArrowRight")
    assert read(page)[1] == link_table(94, 12)[1].full_with_output
    page.wait_for_function("before => document.querySelector('#links-chart svg').innerHTML !== before", arg=before)
    assert page.locator("#links-result").get_attribute("role") == "status"


def test_tab_reaches_every_control_in_the_order_of_the_page(page: Any) -> None:
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(90):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "(() => { const element = document.activeElement; return element.closest('[role=grid]')?.id"
            " || element.id || element.name || element.className; })()"
        )
        if not found and reached and page.evaluate("document.activeElement === document.body"):
            break
        reached.append(found)
    wanted = ["skip", "theme", "scale", "consumer", "links-layers", "links-size", "reads-run", "experts-of",
              "experts-token", "experts-next", "experts-grid", "ranks-of", "ranks-token", "ranks-next"]  # fmt: skip
    places = [reached.index(name) for name in wanted if name in reached]
    assert [name for name in wanted if name not in reached] == []
    assert places[2:] == sorted(places[2:])


def test_a_token_marks_its_experts(page: Any, contents: ModuleType) -> None:
    routing = contents.content().exhibits.routing[0]
    for index in (0, 1, 5):
        page.locator("#experts-token").select_option(str(index))
        chosen = page.locator("#experts-grid [aria-label$=chosen]").evaluate_all(
            "cells => cells.map(cell => Number(cell.dataset.expert))"
        )
        assert sorted(chosen) == sorted(routing.tokens[index].experts)
    page.locator("#experts-next").click()
    assert page.locator("#experts-result").inner_text().startswith("Token 7 of")


def test_arrow_keys_move_through_the_grid_and_say_what_is_there(page: Any, contents: ModuleType) -> None:
    routing = contents.content().exhibits.routing[0]
    page.locator("#experts-grid [tabindex='0']").focus()
    columns = page.locator("#experts-grid [role=row]").first.locator("[role=gridcell]").count()
    assert page.locator("#experts-readout").inner_text().startswith("Expert 1,")
    for key, expert in (("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("Home", columns),
                        ("End", 2 * columns - 1), ("ArrowUp", columns - 1), ("Control+Home", 0), ("ArrowUp", 0),
                        ("Control+End", routing.num_experts - 1), ("ArrowRight", routing.num_experts - 1)):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate("Number(document.activeElement.dataset.expert)") == expert, key
    assert page.locator("#experts-grid [tabindex='0']").count() == 1
    page.locator("#experts-grid [data-expert='37']").hover()
    text = page.locator("#experts-readout").inner_text()
    assert text.startswith("Expert 38, ")
    assert f"{routing.pairs[37]:,} tokens chose it" in text


def test_loads_are_low_middle_or_high(page: Any, contents: ModuleType) -> None:
    pairs = contents.content().exhibits.routing[0].pairs
    mean = sum(pairs) / len(pairs)
    wanted = ["low" if load < mean / 2 else "high" if load > 2 * mean else "middle" for load in pairs]
    cells = page.locator("#experts-grid [role=gridcell]")
    assert cells.evaluate_all("cells => cells.map(cell => cell.classList[1])") == wanted


def test_k3s_own_count_is_an_illustration_and_says_so(page: Any) -> None:
    page.locator("#experts-of").select_option("1")
    assert page.locator("#experts-grid [role=gridcell]").count() == 896
    assert page.locator("#experts-grid [aria-label$=chosen]").count() == 16
    assert "56×" in page.locator("#experts-sparsity").inner_text()
    assert page.get_by_text("experts drawn uniformly with seed 0").is_visible()


def test_hops_of_a_token_and_its_bytes(page: Any, contents: ModuleType) -> None:
    layer = contents.content().exhibits.parallel[0]
    token = layer.tokens[2]
    page.locator("#ranks-token").select_option("2")
    shown = [0 if text == "·" else int(text) for text in page.locator("#ranks-chart .hops").all_text_contents()]
    assert shown == [sum(expert // 112 == rank for expert in token.experts) for rank in range(8)]
    away = 16 - shown[token.rank]
    text = page.locator("#ranks-result").inner_text()
    assert f"{2 * away * 7168 * 2:,} bytes at full width" in text
    assert f"{2 * away * 3584 * 2:,} at the latent" in text
    assert page.locator("#ranks-chart .hop").count() == sum(
        hops > 0 and rank != token.rank for rank, hops in enumerate(shown)
    )


def test_growth_has_two_scales(page: Any) -> None:
    axis = page.locator("[data-chart=growth] svg").text_content()
    page.locator("[name=scale]").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelector('[data-chart=growth] svg')?.textContent !== before", arg=axis
    )
    assert page.locator("[name=scale][value=linear]").is_checked()
    assert "2.5T" in page.locator("[data-chart=growth] svg").text_content()


def test_layers_of_the_stack_are_those_of_the_model(page: Any) -> None:
    for name, kinds in (("Kimi K3", {"kda": 69, "gated_mla": 24, "dense": 1, "latent_moe": 92}),
                        ("Kimi K2", {"mla": 61, "dense": 1, "moe": 60})):  # fmt: skip
        stack = page.locator(f".stack[aria-label^='{name}']")
        assert {kind: stack.locator(f".{kind}").count() for kind in kinds} == kinds


def test_a_category_shows_its_benchmarks_alone(sites: Callable[[str], Path], watch: Callable[..., Any]) -> None:
    watched = watch()
    page = watched.open(sites("content").as_uri(), "standing.html")
    assert page.locator("table:visible").count() == 4
    assert "not measured by us" in page.locator(".warning").inner_text()
    page.get_by_role("radio", name="Coding").check()
    page.wait_for_function(
        "!document.querySelector('[data-chart=standing-percent] svg')?.textContent.includes('GPQA Diamond')"
    )
    assert page.locator("table:visible caption").all_inner_texts() == ["Coding"]
    assert not page.locator("[data-chart=standing-elo]").is_visible()
    assert "SWE-Marathon" in page.locator("[data-chart=standing-percent] svg").text_content()
    page.get_by_role("radio", name="Agentic").check()
    page.wait_for_selector("[data-chart=standing-elo] svg", state="visible")
    watched.drawn()
    assert re.search(r"GDPval-AA v2 \(Elo\)", page.locator("[data-chart=standing-elo] svg").text_content())


def test_charts_take_the_colours_of_the_theme(page: Any) -> None:
    colours = "[...document.querySelectorAll('[data-chart=growth] svg text')].map(text => text.getAttribute('fill'))[0]"
    before = page.evaluate(colours)
    page.locator("#theme").click()
    page.wait_for_function(f"before => {colours} && {colours} !== before", arg=before)
