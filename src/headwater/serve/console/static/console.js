// What pages do beyond being read: they stay up to date, and answer to keys.
"use strict";

(() => {
  const live = document.getElementById("live");
  const saw = () => {
    live.classList.remove("lost");
    live.textContent = "as of " + new Date().toLocaleTimeString();
  };
  saw();

  document.addEventListener("htmx:beforeRequest", (event) => {
    // A page that nobody sees asks for nothing, and an opened value stays open.
    const busy = event.target.querySelector("details[open], input:focus");
    if (document.hidden || busy) event.preventDefault();
  });
  document.addEventListener("htmx:afterOnLoad", saw);
  for (const kind of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(kind, () => {
      live.classList.add("lost");
      live.textContent = "no answer since " + live.textContent.replace(/^.*?(\d.*)$/, "$1") + "; trying again";
    });
  }

  const root = document.querySelector(".brand").getAttribute("href");
  const theme = document.getElementById("theme");
  const themes = ["", "light", "dark"];
  const show = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    theme.textContent = { "": "as the system", light: "light", dark: "dark" }[name];
  };
  let chosen = localStorage.getItem("headwater-theme") || "";
  show(chosen);
  theme.hidden = false;
  theme.title = "Light, dark, or as the system";
  theme.addEventListener("click", () => {
    chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
    localStorage.setItem("headwater-theme", chosen);
    show(chosen);
  });

  const places = { o: "", s: "/streams", q: "/queues", l: "/lists", b: "/outbox", p: "/spark", t: "/timed", d: "/dead", a: "/audit", h: "/store" };
  const help = () => {
    let box = document.getElementById("keys");
    if (!box) {
      box = document.createElement("dialog");
      box.id = "keys";
      box.innerHTML =
        "<h2>Keys</h2><p><kbd>/</kbd> search</p><p><kbd>g</kbd> then <kbd>o</kbd> overview, <kbd>s</kbd> streams, " +
        "<kbd>q</kbd> queues, <kbd>l</kbd> dirty lists, <kbd>b</kbd> outbox, <kbd>p</kbd> Spark, <kbd>t</kbd> timed jobs, <kbd>d</kbd> dead letters, <kbd>a</kbd> audit, <kbd>h</kbd> store</p>" +
        "<p><kbd>+</kbd> <kbd>-</kbd> closer and wider on a ruler</p><p><kbd>r</kbd> load again</p>" +
        "<form method='dialog'><button>Close</button></form>";
      document.body.append(box);
    }
    box.showModal();
  };
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const key = event.key;
    if (before === "g" && key in places) location.href = root + places[key];
    else if (key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) {
        event.preventDefault();
        field.focus();
      } else location.href = root + "/streams";
    } else if (key === "?") help();
    else if (key === "r") location.reload();
    else if (key === "+" || key === "-") document.querySelector(`[data-key="${key}"]`)?.click();
    before = key;
  });

  // The wheel over a ruler zooms around the pointer; shift moves along.
  document.addEventListener("wheel", (event) => {
    const ruler = event.target.closest("[data-ruler]");
    const strip = ruler && event.target.closest("svg");
    if (!strip || !(event.shiftKey || event.ctrlKey)) return;
    event.preventDefault();
    const { first, last, end } = Object.fromEntries(Object.entries(ruler.dataset).map(([k, v]) => [k, Number(v)]));
    const box = strip.getBoundingClientRect();
    const at = first + ((event.clientX - box.left) / box.width) * (last - first);
    const factor = event.deltaY > 0 ? 2 : 0.5;
    const length = Math.max(Math.min(Math.round((last - first + 1) * factor), end), 10);
    const low = Math.max(1, Math.min(Math.round(at - ((at - first) / (last - first + 1)) * length), end - length + 1));
    const asked = new URLSearchParams(location.search);
    asked.set("first", low);
    asked.set("last", low + length - 1);
    location.search = asked;
  }, { passive: false });
})();
