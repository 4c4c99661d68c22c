// Says whether the page is kept up to date.
"use strict";
(() => {
  const live = document.getElementById("live");
  const say = (text) => {
    live.hidden = false;
    if (live.textContent !== text) live.textContent = text;
  };
  document.body.addEventListener("htmx:sseOpen", () => say("Live"));
  document.body.addEventListener("htmx:sseError", () => say("Not live; reload to update"));
})();
