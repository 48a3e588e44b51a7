// Draws the charts of a page: what the server drew as SVG, with a cursor, and renewed as time goes on.
"use strict";

(() => {
  const COLOURS = ["--chart-0", "--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5"];
  // Steps of the time axis, in seconds: two minutes are among them, for narrow charts of five.
  const INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400];
  const drawn = new Map();
  // A canvas takes no light-dark(): an element says which of the two it is.
  const style = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const parts = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

  const spell = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "seconds") {
      for (const [length, word] of [[86400, "d"], [3600, "h"], [60, "min"]])
        if (value >= 2 * length) return whole.format(value / length) + " " + word;
      if (value < 0.1) return value >= 0.001 ? whole.format(value * 1000) + " ms" : "0 s";
      return (value < 9.95 ? value.toFixed(1) : whole.format(value)) + " s";
    }
    if (unit === "bytes") {
      for (const word of ["B", "kB", "MB", "GB"]) {
        if (Math.abs(value) < 1000) return (word === "B" ? whole : parts).format(value) + " " + word;
        value /= 1000;
      }
      return parts.format(value) + " TB";
    }
    const text = (value < 10 ? parts : whole).format(value);
    return unit === "per s" ? text + "/s" : text;
  };

  const table = (data) => [data.times, ...data.lines.map((line) => line.values)];

  const options = (figure, data) => {
    const unit = figure.dataset.unit;
    const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    return {
      width: Math.max(figure.querySelector(".plot").clientWidth, 120),
      height: 130,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "charts" }, points: { size: 5 } },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      axes: [
        { ...axis, size: 22, space: 56, incrs: INCREMENTS, values: [[86400, "{MM}-{DD}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 56, space: 28, values: (_plot, ticks) => ticks.map((tick) => spell(tick, unit)) },
      ],
      series: [
        {},
        ...data.lines.map((line, place) => {
          const colour = style(COLOURS[place % COLOURS.length]);
          return { label: line.label, stroke: colour, width: 1.5, points: { show: false } };
        }),
      ],
      hooks: {
        setCursor: [(plot) => name(figure, plot, plot.cursor.idx)],
      },
    };
  };

  // The legend names the values under the cursor, and the newest ones without it.
  const name = (figure, plot, place) => {
    for (const box of figure.querySelectorAll("[data-line]")) {
      const values = plot.data[Number(box.dataset.line) + 1] || [];
      let at = place;
      if (at === null || at === undefined) at = values.findLastIndex((value) => value !== null);
      box.textContent = spell(values[at], figure.dataset.unit);
    }
  };

  const remove = (figure) => {
    drawn.get(figure)?.plot.destroy();
    drawn.delete(figure);
  };

  const draw = (figure, data) => {
    const labels = data.lines.map((line) => line.label).join("\n");
    const known = drawn.get(figure);
    if (known && known.labels === labels) {
      known.plot.setData(table(data));
      name(figure, known.plot, known.plot.cursor.idx);
      return;
    }
    remove(figure);
    const place = figure.querySelector(".plot");
    if (!place || !data.times.length) return;
    place.replaceChildren();
    const legend = figure.querySelector(".lines");
    legend.replaceChildren(
      ...data.lines.map((line, index) => {
        const item = document.createElement("li");
        const mark = document.createElement("i");
        const value = document.createElement("b");
        mark.className = "mark-" + (index % COLOURS.length);
        value.dataset.line = index;
        item.append(mark, " " + line.label + " ", value);
        return item;
      }),
    );
    figure.classList.add("drawn");
    const plot = new uPlot(options(figure, data), table(data), place);
    drawn.set(figure, { plot, labels, data });
    name(figure, plot, null);
  };

  const begin = () => {
    for (const figure of drawn.keys()) if (!figure.isConnected) remove(figure);
    for (const figure of document.querySelectorAll("[data-chart]")) {
      if (!drawn.has(figure)) draw(figure, JSON.parse(figure.dataset.chart));
    }
  };

  const again = () => {
    for (const figure of [...drawn.keys()]) {
      const { data } = drawn.get(figure);
      remove(figure);
      draw(figure, data);
    }
  };

  // All charts of one source are renewed by one request; a page that nobody sees asks for nothing.
  const renew = async (source) => {
    const figures = [...document.querySelectorAll("[data-source]")].filter((one) => one.dataset.source === source);
    if (!figures.length) return;
    const every = Math.max(Number(figures[0].dataset.every), 1) * 1000;
    if (!document.hidden) {
      try {
        const answer = await fetch(source, { headers: { Accept: "application/json" } });
        if (answer.ok) {
          const { charts } = await answer.json();
          for (const figure of figures) {
            const data = charts[figure.dataset.name];
            if (!data || !figure.isConnected) continue;
            draw(figure, data);
            if (drawn.has(figure)) drawn.get(figure).data = data;
          }
        }
      } catch {
        // The store or the server is away: what is drawn stays, and the frame of the page says so.
      }
    }
    setTimeout(renew, every, source);
  };

  begin();
  const sources = new Set([...document.querySelectorAll("[data-source]")].map((one) => one.dataset.source));
  for (const source of sources) setTimeout(renew, 1000, source);
  document.addEventListener("htmx:afterSettle", begin);
  new MutationObserver(again).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const [figure, { plot }] of drawn) plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: 130 });
  });
})();
