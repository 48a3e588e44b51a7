// A ruler that is zoomed, pointed at and selected on, and the live tail of a stream.
"use strict";

(() => {
  const number = (value) => Math.round(value).toLocaleString("en-US");

  // ── The ruler ──
  const facts = (ruler) => ({
    first: Number(ruler.dataset.first),
    last: Number(ruler.dataset.last),
    end: Number(ruler.dataset.end),
    times: JSON.parse(ruler.dataset.times || "[]"),
  });
  const stripOf = (event) => {
    const strip = event.target.closest(".ruler .row:not(.whole) svg.strip");
    return strip && { strip, ruler: strip.closest("[data-ruler]") };
  };
  const offsetAt = (event, { strip, ruler, box = strip.getBoundingClientRect() }) => {
    const { first, last } = facts(ruler);
    const share = Math.max(0, Math.min((event.clientX - box.left) / box.width, 1));
    return Math.max(first, Math.min(Math.floor(first + share * (last - first + 1)), last));
  };
  const timeAt = (times, offset) => {
    const place = times.findIndex(([reached]) => reached >= offset);
    if (place < 0) return "";
    const [high, until] = times[place];
    const [low, since] = times[place - 1] || [high, until];
    const ms = high > low ? since + ((offset - low) / (high - low)) * (until - since) : until;
    return " · about " + new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  };

  // Shows another part of the stream without leaving the page.
  const show = (first, last) => {
    const asked = new URLSearchParams(location.search);
    asked.set("first", first);
    asked.set("last", last);
    go("?" + asked);
  };
  const go = (address) => {
    if (!window.htmx || !document.getElementById("stream")) {
      location.href = address;
      return;
    }
    history.replaceState(null, "", address);
    window.htmx.ajax("GET", location.href, { source: "#stream", target: "#stream", select: "#stream", swap: "outerHTML" });
  };
  const zoom = (ruler, at, factor) => {
    const { first, last, end } = facts(ruler);
    const length = Math.max(Math.min(Math.round((last - first + 1) * factor), end), Math.min(10, end));
    const low = Math.round(at - ((at - first) / (last - first + 1)) * length);
    const from = Math.max(1, Math.min(low, end - length + 1));
    show(from, from + length - 1);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-zoom]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  let wheeled = 0;
  document.addEventListener("wheel", (event) => {
    const over = stripOf(event);
    if (!over || !(event.shiftKey || event.ctrlKey)) return;
    event.preventDefault();
    if (Date.now() - wheeled < 120) return;
    wheeled = Date.now();
    zoom(over.ruler, offsetAt(event, over), (event.deltaY || event.deltaX) > 0 ? 2 : 0.5);
  }, { passive: false });
  document.addEventListener("keydown", (event) => {
    const ruler = event.target.closest("[data-ruler]");
    if (!ruler || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      document.querySelector(`[data-arrow="${event.key}"]`)?.click();
    } else if (event.key === "Home") {
      const { first, last } = facts(ruler);
      show(1, last - first + 1);
    } else if (event.key === "End") {
      const { first, last, end } = facts(ruler);
      show(end - last + first, end);
    } else if (event.key === "Escape") closeSelection();
  });

  // What is under the pointer, in words.
  document.addEventListener("pointermove", (event) => {
    const over = stripOf(event);
    const ruler = over && over.ruler;
    for (const line of document.querySelectorAll(".pointed")) if (!ruler || !ruler.contains(line)) line.hidden = true;
    if (!ruler) return;
    const line = ruler.querySelector(".pointed");
    if (drag && drag.moved) {
      const [low, high] = [drag.from, offsetAt(event, drag)].sort((a, b) => a - b);
      line.textContent = `${drag.select ? "select" : "zoom to"} ${number(low)} – ${number(high)}: ${number(high - low + 1)}`;
    } else {
      const offset = offsetAt(event, over);
      const who = over.strip.closest(".row").querySelector(".who").textContent.trim();
      const title = event.target.closest("rect")?.querySelector("title")?.textContent;
      line.textContent = `${number(offset)}${timeAt(facts(ruler).times, offset)}${title ? ` · ${who} · ${title}` : ""}`;
    }
    line.hidden = false;
  });

  // A drag zooms; with Shift it selects a range, for which there are links.
  let drag = null;
  document.addEventListener("pointerdown", (event) => {
    const over = event.button === 0 && event.pointerType !== "touch" && stripOf(event);
    if (!over) return;
    // Where the strip is now: it is replaced when the page is renewed, and then is nowhere.
    const box = over.strip.getBoundingClientRect();
    drag = { ...over, box, from: offsetAt(event, over), x: event.clientX, moved: false, select: event.shiftKey };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag || (!drag.moved && Math.abs(event.clientX - drag.x) < 5)) return;
    drag.moved = true;
    drag.to = offsetAt(event, drag);
    band(drag.ruler, drag.from, drag.to);
  });
  document.addEventListener("dragstart", (event) => {
    if (drag) event.preventDefault();
  });
  document.addEventListener("pointerup", () => {
    if (!drag) return;
    const { ruler, from, to, moved, select } = drag;
    setTimeout(() => (drag = null));
    if (!moved) return;
    const [low, high] = [from, to].sort((a, b) => a - b);
    if (select) openSelection(ruler, low, high);
    else if (high > low) show(low, high);
  });
  // A click reads at the very offset, not at the beginning of what is drawn there.
  document.addEventListener("click", (event) => {
    const over = stripOf(event);
    if (!over || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (drag && drag.moved) return;
    location.href = `${over.ruler.dataset.stream}?at=${offsetAt(event, over)}#messages`;
  });

  const band = (begun, from, to) => {
    const ruler = begun.isConnected ? begun : document.querySelector("[data-ruler]") || begun;
    const { first, last } = facts(ruler);
    const scale = 1000 / (last - first + 1);
    const [low, high] = [from, to].sort((a, b) => a - b);
    for (const strip of ruler.querySelectorAll(".row:not(.whole) svg.strip")) {
      let rect = strip.querySelector("rect.band");
      if (!rect) {
        rect = document.createElementNS(strip.namespaceURI, "rect");
        rect.setAttribute("class", "band");
        rect.setAttribute("y", 0);
        rect.setAttribute("height", 14);
        strip.append(rect);
      }
      rect.setAttribute("x", (low - first) * scale);
      rect.setAttribute("width", Math.max((high - low + 1) * scale, 2));
    }
  };
  const closeSelection = () => {
    document.querySelector(".selection")?.remove();
    for (const rect of document.querySelectorAll("rect.band")) rect.remove();
  };
  const openSelection = (ruler, low, high) => {
    closeSelection();
    band(ruler, low, high);
    const stream = ruler.dataset.stream;
    const box = document.createElement("p");
    box.className = "selection buttons";
    box.setAttribute("role", "status");
    box.append(`${number(low)} – ${number(high)}: ${number(high - low + 1)} offsets `);
    const link = (words, address) => {
      const made = document.createElement("a");
      made.className = "button";
      made.href = address;
      made.textContent = words;
      box.append(made, " ");
    };
    link("Read", `${stream}?at=${low}#messages`);
    link("Zoom", `?first=${low}&last=${high}`);
    link("Replay", `${stream}/replay?first=${low}&last=${high}`);
    link("Export", `${stream}/replay?first=${low}&last=${high}#export`);
    for (const row of ruler.querySelectorAll(".row .who a")) link(`Seek ${row.textContent.trim()}`, `${row.getAttribute("href")}?to=${low}#seek`);
    const close = document.createElement("button");
    close.type = "button";
    close.className = "quiet";
    close.textContent = "Close";
    close.addEventListener("click", closeSelection);
    box.append(close);
    // Outside of what is renewed, so that it stays.
    (document.getElementById("stream") || ruler).after(box);
  };

  // ── The live tail ──
  const tail = document.getElementById("tail");
  if (!tail || !window.EventSource) return;
  const rows = document.getElementById("tail-rows");
  const state = document.getElementById("tail-state");
  const pause = document.getElementById("pause");
  const clear = document.getElementById("clear");
  const MOST = 200;
  let source = null;
  let next = Number(tail.dataset.from);
  let seen = 0;
  let skipped = 0;
  const say = (words) => {
    state.textContent = words + (skipped ? `; ${number(skipped)} skipped, they came too fast to show` : "");
  };
  const add = (cells, kind) => {
    const row = document.createElement("tr");
    if (kind) row.className = kind;
    row.append(...cells);
    rows.prepend(row);
    while (rows.children.length > MOST) rows.lastChild.remove();
  };
  const cell = (label, content, kind) => {
    const made = document.createElement("td");
    if (kind) made.className = kind;
    made.dataset.label = label;
    made.append(content);
    return made;
  };
  const linked = (offset) => {
    const link = document.createElement("a");
    link.href = `${tail.dataset.messages}/messages/${offset}`;
    link.textContent = number(offset);
    return link;
  };
  // As the server shows texts: what a screen does not show, or what turns the others round, is spelled.
  const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const line = (kind, text, most) => {
    const made = document.createElement(kind);
    const shown = text.length > most ? text.slice(0, most - 1) + "…" : text;
    made.textContent = shown.replace(unseen, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
    return made;
  };
  const follow = () => {
    source = new EventSource(`${tail.dataset.feed}?from=${next}`);
    source.onopen = () => say("following");
    source.onerror = () => say("no answer; trying again");
    source.onmessage = (event) => {
      const message = JSON.parse(event.data);
      next = message.offset + 1;
      seen += 1;
      const time = new Date(message.time_ms).toISOString().slice(11, 23);
      const tag = line("span", message.tag, 120);
      tag.className = "long";
      const text = message.encoding ? `${message.encoding}: ${message.value}` : message.value;
      add([cell("Offset", linked(message.offset), "n"), cell("Time", time), cell("Tag", tag), cell("Value", line("code", text, 300))]);
      say(`following, ${number(seen)} shown`);
    };
    source.addEventListener("skipped", (event) => {
      const gone = JSON.parse(event.data);
      const count = gone.last - gone.first + 1;
      next = gone.last + 1;
      skipped += gone.why ? count : 0;
      const words = `${number(gone.first)} – ${number(gone.last)}: ${number(count)} `;
      const link = document.createElement("a");
      link.href = `${tail.dataset.messages}?at=${gone.first}#messages`;
      link.textContent = words + (gone.why ? "skipped, too many to show; read them" : "were evicted before they could be read");
      const wide = cell("Skipped", link);
      wide.colSpan = 4;
      add([wide], "gone");
      say(`following, ${number(seen)} shown`);
    });
  };
  pause.hidden = clear.hidden = false;
  pause.addEventListener("click", () => {
    if (source) {
      source.close();
      source = null;
      pause.textContent = "Resume";
      say(`paused before ${number(next)}`);
    } else {
      pause.textContent = "Pause";
      follow();
    }
  });
  clear.addEventListener("click", () => rows.replaceChildren());
  say("connecting");
  follow();
})();
