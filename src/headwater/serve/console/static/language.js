// Gives scripts a language that Intl accepts, and so is loaded before uPlot, which fails without one.
"use strict";

(() => {
  try {
    new Intl.NumberFormat(navigator.language);
  } catch {
    // A Chromium whose locale is C or POSIX reports "en-US@posix", which is not a language tag.
    Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
  }
})();
