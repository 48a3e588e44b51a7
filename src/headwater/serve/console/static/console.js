// What pages do beyond being read: they stay up to date, and answer to keys.
"use strict";

(() => {
  // ── As of when ──
  const live = document.getElementById("live");
  const news = document.getElementById("news");
  const renewed = document.querySelector("[hx-trigger^=every]") !== null;
  let asOf = new Date();
  const say = (told) => {
    // A page of a server that answers may show what its store said before it went away.
    const away = document.querySelector("[data-away]");
    const state = told === "live" && (away || document.querySelector("#fault[hx-get]")) ? "away" : told;
    // The clock of the charts and of exact times: 24 hours, UTC.
    const exact = asOf.toISOString().replace("T", " ").slice(0, 19);
    const time = exact.slice(11) + " UTC";
    live.classList.toggle("on", renewed && state === "live");
    live.classList.toggle("lost", state === "lost" || state === "away");
    const words = { live: `as of ${time}`, away: away?.dataset.away ? `shown as of ${away.dataset.away}` : "the store does not answer", held: `paused, as of ${time}`, lost: `no answer since ${time}; trying again` };
    live.textContent = words[state];
    const hint = { away: "The page tries again.", live: renewed ? "This page refreshes itself." : "Press r to reload.", held: "Refreshing is paused while something is open, selected or being edited.", lost: "" }[state];
    live.title = `${exact} UTC, your time ${asOf.toLocaleTimeString("en-GB", { timeZoneName: "short" })}. ${hint}`;
    // Said aloud once, not with every try.
    const aloud = { lost: "The server does not answer; the page tries again.", away: "The store does not answer; the page tries again." }[state] ?? "";
    if (news.textContent !== aloud) news.textContent = aloud;
  };
  say("live");

  document.addEventListener("htmx:beforeRequest", (event) => {
    // A page that nobody sees asks for nothing, and an opened value stays open.
    const busy = event.target.querySelector("details[open], input:focus, select:focus, textarea:focus, input[type=checkbox]:checked");
    if (document.hidden || busy) event.preventDefault();
    if (busy) say("held");
  });
  document.addEventListener("htmx:afterOnLoad", (event) => {
    if (!event.detail.successful) return;
    // The page that said what was wrong is over.
    if (event.target.id === "fault") location.reload();
    asOf = new Date();
    say("live");
  });
  document.addEventListener("htmx:responseError", (event) => {
    // What is gone, or not allowed any more, has a page that says so.
    if (event.detail.xhr.status < 500) location.reload();
    else say("lost");
  });
  for (const kind of ["htmx:sendError", "htmx:timeout"]) document.addEventListener(kind, () => say("lost"));

  // ── Ages: what is not renewed grows older before the eyes ──
  const ahead = Date.now() - Number(live.dataset.now);
  const age = (seconds) => {
    if (seconds < 9.95) return seconds.toFixed(1) + " s";
    const [length, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([length]) => seconds >= 2 * length || length === 1);
    return Math.round(seconds / length) + " " + unit;
  };
  setInterval(() => {
    if (document.hidden) return;
    for (const one of document.querySelectorAll("time[datetime]")) {
      // What is renewed says its age as of then.
      if (one.closest("[hx-trigger^=every]")) continue;
      const ago = (Date.now() - ahead - Date.parse(one.dateTime)) / 1000;
      one.textContent = ago >= 0 ? `${age(ago)} ago` : `in ${age(-ago)}`;
    }
  }, 1000);

  // What was done is said once, not by every reload and bookmark.
  const address = new URL(location.href);
  if (address.searchParams.has("said")) {
    address.searchParams.delete("said");
    history.replaceState(null, "", address);
  }

  // ── Light and dark ──
  const theme = document.getElementById("theme");
  const themes = ["", "light", "dark"];
  const show = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    const [sign, words] = { "": ["◐", "system"], light: ["☀", "light"], dark: ["☾", "dark"] }[name];
    theme.replaceChildren(sign, " ", Object.assign(document.createElement("span"), { className: "words", textContent: `Theme: ${words}` }));
    theme.setAttribute("aria-label", `Theme: ${words}`);
  };
  let chosen = localStorage.getItem("headwater-theme") || "";
  show(chosen);
  theme.hidden = false;
  theme.title = "Switch the theme: system, light, dark";
  theme.addEventListener("click", () => {
    chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
    localStorage.setItem("headwater-theme", chosen);
    show(chosen);
  });

  // ── Copying: what stands before the button ──
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.closest("div, p").querySelector("code, pre");
    // Also where no clipboard is allowed, as over plain HTTP from afar: then it is marked for Ctrl-C.
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      news.textContent = button.firstChild.data = "Copied";
    } catch {
      button.firstChild.data = "Selected";
    }
    setTimeout(() => (button.firstChild.data = "Copy"), 2000);
  });

  // ── Keys ──
  const places = [...document.querySelectorAll("[data-go]")];
  const row = (keys, words) => {
    const term = document.createElement("dt");
    for (const key of keys) {
      const drawn = document.createElement("kbd");
      drawn.textContent = key;
      term.append(drawn, " ");
    }
    const meaning = document.createElement("dd");
    meaning.textContent = words;
    return [term, meaning];
  };
  const help = () => {
    let box = document.getElementById("keys");
    if (!box) {
      box = document.createElement("dialog");
      box.id = "keys";
      box.setAttribute("aria-label", "Keys");
      const list = document.createElement("dl");
      list.className = "keys";
      list.append(...row(["/"], "search everything"), ...row(["f"], "filter this page"), ...row(["r"], "load again"), ...row(["?"], "these keys"));
      list.append(...row(["+", "-"], "closer and wider on a ruler"));
      for (const one of places) list.append(...row(["g", one.dataset.go], one.textContent));
      const form = document.createElement("form");
      form.method = "dialog";
      form.append(Object.assign(document.createElement("button"), { textContent: "Close" }));
      box.append(list, form);
      document.body.append(box);
    }
    box.showModal();
  };
  // In a search, the arrows go from the field through what was found, and back.
  document.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.closest("[data-everywhere], .hits a")) return;
    const stops = [...document.querySelectorAll("[data-everywhere], .hits a")];
    const next = stops[stops.indexOf(event.target) + step];
    if (next) next.focus();
    event.preventDefault();
  });

  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input:not(.menu-box), textarea, select, dialog")) return;
    const key = event.key;
    const place = before === "g" && places.find((one) => one.dataset.go === key);
    before = key;
    if (place) location.href = place.href;
    else if (key === "/") {
      event.preventDefault();
      const field = document.querySelector("[data-everywhere]");
      field?.focus();
      field?.select();
    } else if (key === "f") {
      event.preventDefault();
      document.querySelector("[data-search]")?.focus();
    } else if (key === "?") help();
    else if (key === "r") location.reload();
    else if (key === "+" || key === "-") document.querySelector(`[data-key="${key}"]`)?.click();
  });
})();
