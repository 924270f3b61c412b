// Keeps a page fresh: as events come, and every 15 s for the times on it. Each part marked data-live is replaced by the
// same part of a newly fetched page, unless somebody is typing in it or has something in it open.
"use strict";
(() => {
  const stale = document.getElementById("stale");
  const seen = () => document.getElementById("as-of").textContent.replace(/^.* (\d\d:)/, "at $1");
  const busy = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, button, summary")
    || part.querySelector("details[open]") !== null;
  let waiting = null, fetching = false, again = false, source = null;

  const lost = (is) => {
    if (is) document.getElementById("stale-since").textContent = seen();
    stale.hidden = !is;
  };

  const refresh = async () => {
    waiting = null;
    if (fetching) { again = true; return; }
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; }
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && !busy(part) && part.outerHTML !== fresh.outerHTML) {
          const at = part.querySelector(".scroll");
          const left = at ? at.scrollLeft : 0;
          part.replaceWith(fresh);
          if (left) fresh.querySelector(".scroll").scrollLeft = left;
        }
      }
      document.title = page.title;
      lost(false);
    } catch (error) {
      lost(true);
    } finally {
      fetching = false;
      if (again) { again = false; soon(); }
    }
  };

  const soon = () => { if (waiting === null) waiting = setTimeout(refresh, 400); };

  const listen = () => {
    source = new EventSource("/api/v1/events/stream");
    source.onmessage = soon;
    source.onopen = soon;  // what happened since the page was made
  };

  const rest = () => { if (source) { source.close(); source = null; } };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) rest();
    else if (!source) { listen(); soon(); }
  });
  addEventListener("pagehide", rest);
  setInterval(() => { if (!document.hidden) soon(); }, 15000);
  if (!document.hidden) listen();
})();
