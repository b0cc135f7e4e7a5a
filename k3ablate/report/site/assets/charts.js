"use strict";
// Draws the charts that a page names, in the page's colours, and again when the theme or a choice changes.
const k3 = (() => {
  const SERIES = ["--series-0", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
  const NARROW = 560, MOST_LABEL = 260, MARGIN = 90, SYMBOL = 36, WIDE_LETTER = 8;

  const data = (name) => {
    const element = document.getElementById(`data-${name}`);
    return element ? JSON.parse(element.textContent) : null;
  };

  const probe = document.createElement("i");
  const colour = (name) => {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  // As many columns of a legend as the longest name of a series allows.
  const legend = (width, specification) => {
    const names = (specification.layer ?? []).flatMap((layer) => layer.encoding.color?.scale?.domain ?? []);
    const limit = Math.min(MOST_LABEL, width - MARGIN);
    const longest = Math.min(limit, WIDE_LETTER * Math.max(0, ...names.map((name) => name.length)));
    return { columns: Math.max(1, Math.floor((width - MARGIN) / (longest + SYMBOL))), labelLimit: limit };
  };

  const config = (width, specification) => {
    const [ink, muted, faint] = ["--ink", "--muted", "--faint"].map(colour);
    const font = "'Source Sans 3', system-ui, sans-serif";
    const isNarrow = width < NARROW;
    const text = { labelFont: font, titleFont: font, labelColor: ink, titleColor: muted, labelFontSize: 13, titleFontSize: 13, titleFontWeight: 400 };
    return {
      background: null, font, aria: false, padding: { left: 2, right: 12, top: 4, bottom: 2 },
      view: { stroke: null },
      axis: { ...text, domainColor: muted, tickColor: muted, gridColor: faint, tickSize: 4, labelLimit: isNarrow ? 168 : 260 },
      axisX: { grid: true, titlePadding: 8, titleAnchor: "end", tickCount: isNarrow ? 4 : 8, labelOverlap: true },
      axisY: { titleAngle: 0, titleAlign: "left", titleAnchor: "start", titleY: -12, titleX: 0 },
      legend: { ...text, symbolSize: 80, columnPadding: 16, ...legend(width, specification) },
      range: { category: SERIES.map(colour), heatmap: ["--heat-0", "--heat-1", "--heat-2", "--heat-3"].map(colour), ramp: ["--heat-0", "--heat-3"].map(colour) },
      style: { faint: { stroke: muted, strokeOpacity: 0.6 } },
      text: { color: ink, font, fontSize: 13 },
      rule: { color: muted },
      point: { strokeWidth: 1.5 },
      line: { color: ink },
    };
  };

  const draw = async (element, specification) => {
    await document.fonts.ready;
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: false, config: config(element.clientWidth, specification) };
    const { view } = await vegaEmbed(element, specification, options);
    element.querySelector("svg").setAttribute("aria-hidden", "true"); // its place has a name, the numbers are a table
    return view;
  };

  // What is chosen in a group of radio buttons or in a list: a value of a variant, or its number.
  const chosen = (name) => {
    const radio = document.querySelector(`input[name="${CSS.escape(name)}"]:checked`);
    const list = document.getElementById(name);
    return radio ? radio.value : list && "value" in list ? list.value : null;
  };

  const variant = (chart, by) => {
    const value = by ? chosen(by) : null;
    if (value !== null && Object.hasOwn(chart, value)) return chart[value];
    return Object.values(chart)[Number(value ?? 0)];
  };

  const charts = [];
  const show = (entry) => {
    const specification = variant(entry.chart, entry.by);
    const place = document.querySelector(`[data-with="${entry.name}"]`) ?? entry.element;
    place.hidden = !specification;
    if (specification) return draw(entry.element, specification);
    return null;
  };

  const filter = (by) => {
    const value = chosen(by);
    for (const element of document.querySelectorAll(`[data-shown-by="${CSS.escape(by)}"]`)) {
      element.hidden = value !== "All" && element.dataset.value !== value;
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      const chart = data(element.dataset.chart);
      if (chart) charts.push({ element, chart, name: element.dataset.chart, by: element.dataset.by });
    }
    charts.forEach(show);
    const groups = new Set([...document.querySelectorAll("[data-shown-by]")].map((element) => element.dataset.shownBy));
    groups.forEach(filter);
    document.addEventListener("change", (event) => {
      const by = event.target.name || event.target.id;
      charts.filter((entry) => entry.by === by).forEach(show);
      if (groups.has(by)) filter(by);
    });
    document.addEventListener("theme", () => charts.forEach(show));
  });

  const number = (value, places) =>
    value.toLocaleString("en-US", places === undefined ? {} : { minimumFractionDigits: places, maximumFractionDigits: places });

  // A list of tokens with a button before and one after it; `change` gets the number of the token.
  const stepper = (name, change) => {
    const [list, previous, next] = ["token", "previous", "next"].map((part) => document.getElementById(`${name}-${part}`));
    const move = (index) => {
      list.selectedIndex = index;
      previous.disabled = index <= 0;
      next.disabled = index >= list.options.length - 1;
      change(index);
    };
    list.addEventListener("change", () => move(list.selectedIndex));
    previous.addEventListener("click", () => move(list.selectedIndex - 1));
    next.addEventListener("click", () => move(list.selectedIndex + 1));
    return (texts) => {
      list.replaceChildren(...texts.map((text, index) => new Option(`${index + 1}: ${visible(text)}`, String(index))));
      move(0);
    };
  };

  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)) || "(empty)";

  return { data, colour, draw, number, stepper, visible };
})();
