"use strict";
// The experts of one routed layer as a grid, and those of one token in it.
document.addEventListener("DOMContentLoaded", () => {
  const layers = k3.data("routing");
  if (!layers) return;
  const LOW = 0.5, HIGH = 2, SMALLEST = 12, LARGEST = 30, HEIGHT = 240, AROUND = 24;
  const part = (name) => document.getElementById(`experts-${name}`);
  const grid = part("grid");
  let layer = layers[0], token = layers[0].tokens[0], cells = [], columns = 0, current = 0;

  const mean = () => layer.pairs.reduce((sum, pairs) => sum + pairs, 0) / layer.pairs.length;
  const ratio = (expert) => (mean() > 0 ? layer.pairs[expert] / mean() : 0);
  const load = (expert) => (ratio(expert) < LOW ? "low" : ratio(expert) > HIGH ? "high" : "middle");

  // Columns that divide the experts and make a grid of about one height, with squares that can be seen.
  const fitting = () => {
    const count = layer.pairs.length, width = grid.clientWidth || LARGEST;
    const most = Math.max(4, Math.min(count, Math.floor(width / SMALLEST)));
    const fewest = Math.min(most, Math.ceil(width / LARGEST));
    const off = (number) => Math.abs((count / number) * (width / number) - HEIGHT) + (count % number ? 10 * HEIGHT : 0);
    let best = most;
    for (let number = fewest; number <= most; number += 1) if (off(number) < off(best)) best = number;
    return best;
  };

  const words = (expert) => {
    const times = `${k3.number(ratio(expert), 2)} times the mean`;
    return `expert ${expert + 1}, ${load(expert)} load, ${times}${token.experts.includes(expert) ? ", chosen" : ""}`;
  };

  const build = () => {
    columns = fitting();
    grid.style.setProperty("--columns", columns);
    cells = layer.pairs.map((_, expert) => {
      const cell = document.createElement("div");
      cell.setAttribute("role", "gridcell");
      cell.dataset.expert = expert;
      cell.tabIndex = expert === current ? 0 : -1;
      return cell;
    });
    const rows = [];
    for (let start = 0; start < cells.length; start += columns) {
      const row = document.createElement("div");
      row.setAttribute("role", "row");
      row.append(...cells.slice(start, start + columns));
      rows.push(row);
    }
    grid.replaceChildren(...rows);
    mark();
  };

  const mark = () => {
    const chosen = new Set(token.experts);
    const average = mean();
    cells.forEach((cell, expert) => {
      const times = average > 0 ? layer.pairs[expert] / average : 0;
      const amount = times < LOW ? "low" : times > HIGH ? "high" : "middle";
      cell.className = `expert ${amount}${chosen.has(expert) ? " chosen" : ""}`;
      const state = chosen.has(expert) ? ", chosen" : "";
      cell.setAttribute("aria-label", `expert ${expert + 1}, ${amount} load${state}`);
    });
  };

  const read = (expert) => {
    const place = token.experts.indexOf(expert);
    const pairs = k3.number(layer.pairs[expert]);
    const weight = place < 0 ? "not chosen for this token" : `chosen for this token with weight ${k3.number(token.weights[place] ?? 0, 3)}`;
    const tokens = layer.pairs[expert] === 1 ? "token" : "tokens";
    const text = words(expert).replace(", chosen", "");
    part("readout").textContent = `${text[0].toUpperCase()}${text.slice(1)}: ${pairs} ${tokens} chose it; ${weight}.`;
  };

  const focus = (expert) => {
    cells[current].tabIndex = -1;
    current = Math.max(0, Math.min(cells.length - 1, expert));
    cells[current].tabIndex = 0;
    cells[current].focus();
  };

  const passage = (index) => {
    const start = Math.max(0, index - AROUND);
    const spans = layer.tokens.slice(start, index + AROUND + 1).map(({ text }, offset) => {
      const span = document.createElement(start + offset === index ? "mark" : "span");
      span.textContent = layer.is_drawn ? `${text} ` : start + offset === index ? k3.visible(text) : text;
      return span;
    });
    part("passage").replaceChildren(...spans);
  };

  const showToken = (index) => {
    token = layer.tokens[index] ?? { text: "", experts: [], weights: [] };
    mark();
    passage(index);
    const experts = token.experts.map((expert, place) => `${expert + 1} (${k3.number(token.weights[place] ?? 0, 2)})`);
    part("result").textContent = `Token ${index + 1} of ${layer.tokens.length}, “${k3.visible(token.text)}”, goes to experts ${experts.join(", ")}.`;
  };

  const fill = k3.stepper("experts", showToken);
  const showLayer = (index) => {
    layer = layers[index];
    token = layer.tokens[0];
    current = 0;
    build();
    fill(layer.tokens.map(({ text }) => text));
    const [all, active, shared] = [layer.pairs.length, layer.num_active, layer.num_shared];
    part("share").style.setProperty("--share", active / all);
    const beside = shared ? `, and ${shared} shared` : "";
    part("sparsity").textContent = `${k3.number(active)} of ${k3.number(all)} experts${beside}: sparsity ${k3.number(all / active, all % active ? 1 : 0)}×`;
  };

  const steps = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -columns, ArrowDown: () => columns };
  grid.addEventListener("keydown", (event) => {
    const rowStart = current - (current % columns);
    let target = null;
    if (event.key in steps) target = current + steps[event.key]();
    else if (event.key === "Home") target = event.ctrlKey ? 0 : rowStart;
    else if (event.key === "End") target = event.ctrlKey ? cells.length - 1 : rowStart + columns - 1;
    if (target === null) return;
    event.preventDefault();
    if (target >= 0 && target < cells.length) focus(target);
  });
  const expertOf = (event) => event.target.closest("[data-expert]")?.dataset.expert;
  for (const kind of ["pointerover", "focusin"]) {
    grid.addEventListener(kind, (event) => {
      const expert = expertOf(event);
      if (expert !== undefined) read(Number(expert));
    });
  }
  grid.addEventListener("click", (event) => {
    const expert = expertOf(event);
    if (expert !== undefined) focus(Number(expert));
  });
  document.getElementById("experts-of").addEventListener("change", (event) => showLayer(Number(event.target.value)));
  new ResizeObserver(() => {
    if (fitting() !== columns) build();
  }).observe(grid);
  showLayer(0);
});
