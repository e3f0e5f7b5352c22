"use strict";
// What all pages share: regions that follow the server, clocks that count down,
// menus that close. Text of the server comes as HTML that the server has escaped;
// a DOMParser makes nodes of it and runs nothing.
(() => {
  const token = document.body.dataset.token;
  const skew = Date.parse(document.body.dataset.now) - Date.now();

  const span = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s}s`;
    if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h ${two(Math.floor(s / 60) % 60)}m`;
    return `${Math.floor(s / 86400)}d ${two(Math.floor(s / 3600) % 24)}h`;
  };
  const tick = () => {
    const now = Date.now() + skew;
    for (const el of document.querySelectorAll("[data-until]")) {
      const left = Date.parse(el.dataset.until) - now;
      const text = left <= 0 ? "now" : `in ${span(left)}`;
      if (el.textContent !== text) el.textContent = text;
    }
  };
  setInterval(tick, 1000);

  const say = (text) => { document.getElementById("said").textContent = text; };

  // Whether a key or a button of the mouse is down: what it is released on must be what
  // it was pressed on.
  let pressed = false;
  for (const type of ["keydown", "pointerdown"]) addEventListener(type, () => { pressed = true; }, true);
  for (const type of ["keyup", "pointerup", "pointercancel"]) addEventListener(type, () => { pressed = false; }, true);
  addEventListener("blur", () => { pressed = false; }); // of the window

  // refresh asks for this page again and takes over the regions that follow the
  // server. One that is in use, with the focus in a field or a menu open, is left alone.
  const inUse = (el) => {
    const active = document.activeElement;
    if (pressed) { again = true; return true; }
    if (el.querySelector("details[open]:not(.values)")) return true;
    return el.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName) && active.type !== "checkbox";
  };
  const focusable = "a, button, summary, input, [tabindex]";
  const nameOf = (el) => `${el.tagName} ${el.getAttribute("aria-label") || el.getAttribute("href") || el.textContent.trim()}`;
  const had = new Map(); // what the server said last of each region
  for (const el of document.querySelectorAll("[data-live]")) had.set(el, el.innerHTML);
  let asking = false, again = false, took = 0;
  const refresh = async () => {
    if (asking) { again = true; return; }
    asking = true;
    const begun = performance.now();
    try {
      const resp = await fetch(location.pathname + location.search, { headers: { "X-Drowse-Token": token }, redirect: "error" });
      if (resp.status === 401) { location.reload(); return; }
      if (!resp.ok) return;
      const fresh = new DOMParser().parseFromString(await resp.text(), "text/html");
      for (const el of document.querySelectorAll("[data-live]")) {
        const by = fresh.querySelector(`[data-live="${CSS.escape(el.dataset.live)}"]`);
        if (!by || by.innerHTML === had.get(el) || inUse(el)) continue;
        had.set(el, by.innerHTML);
        const active = el.contains(document.activeElement) ? nameOf(document.activeElement) : "";
        const scroller = el.querySelector(".log, .scroll");
        const at = scroller && { top: scroller.scrollTop, end: scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 4 };
        const chosen = new Set([...el.querySelectorAll("input[form=several]:checked")].map((box) => box.value));
        const values = el.querySelector("details.values[open]");
        if (values) by.querySelector("details.values")?.setAttribute("open", "");
        el.replaceChildren(...by.childNodes);
        for (const box of el.querySelectorAll("input[form=several]")) box.checked = chosen.has(box.value);
        if (active) [...el.querySelectorAll(focusable)].find((n) => nameOf(n) === active)?.focus({ preventScroll: true });
        const scrolled = el.querySelector(".log, .scroll");
        if (at && scrolled) scrolled.scrollTop = at.end && scrolled.classList.contains("log") ? scrolled.scrollHeight : at.top;
      }
      tick();
      count();
    } catch { /* the next event asks again */ } finally {
      asking = false;
      took = performance.now() - begun;
      if (again) { again = false; later(); }
    }
  };
  let waiting = 0;
  const later = () => { if (!waiting) waiting = setTimeout(() => { waiting = 0; if (!document.hidden) refresh(); }, Math.max(400, 4 * took)); };

  // follow reads the stream of events. It is not an EventSource, which could not
  // send the token. A page that nobody sees has none: browsers have few connections
  // for one host.
  const seen = () => document.hidden ? new Promise((r) => document.addEventListener("visibilitychange", r, { once: true })).then(seen) : undefined;
  const follow = async (sandbox) => {
    for (let wait = 1000; ; wait = Math.min(30000, Math.max(500, wait * 2))) {
      await seen();
      const hidden = new AbortController();
      const hide = () => { if (document.hidden) { wait = 0; hidden.abort(); } };
      document.addEventListener("visibilitychange", hide);
      try {
        const resp = await fetch("/ui/events" + (sandbox ? `?sandbox=${encodeURIComponent(sandbox)}` : ""), { headers: { "X-Drowse-Token": token }, signal: hidden.signal });
        if (resp.status === 401) { location.reload(); return; }
        if (resp.ok) {
          document.body.dataset.following = "yes";
          wait = 1000;
          later(); // what happened before the stream began
          const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader();
          let rest = "";
          for (;;) {
            const { done, value } = await reader.read();
            if (done) break;
            rest += value;
            for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
              const line = rest.slice(0, end).split("\n").find((l) => l.startsWith("data: "));
              if (!line) continue;
              later();
              if (sandbox) { const e = JSON.parse(line.slice(6)); say(`${e.type}${e.cause ? `, because of ${e.cause}` : ""}`); }
            }
          }
        }
      } catch { /* tried again below */ }
      document.removeEventListener("visibilitychange", hide);
      delete document.body.dataset.following;
      await new Promise((r) => setTimeout(r, wait));
    }
  };
  const live = document.querySelector("[data-events]");
  if (live && token) {
    follow(live.dataset.events);
    setInterval(() => { if (!document.hidden) later(); }, 1000 * (live.dataset.every || 10));
    document.addEventListener("visibilitychange", () => { if (!document.hidden) later(); });
  }
  const log = document.querySelector(".log");
  if (log) log.scrollTop = log.scrollHeight;

  // Menus close with Escape and by a click elsewhere.
  document.addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    const open = document.querySelector("details.menu[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });
  document.addEventListener("click", (e) => {
    for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(e.target)) open.open = false;
  });
  // Boxes that choose rows, one that chooses all of them, and what can be done to them.
  const count = () => {
    const all = document.querySelector("[data-all]"), form = document.getElementById("several");
    if (!form) return;
    const boxes = [...document.querySelectorAll("input[form=several]")];
    const chosen = boxes.filter((box) => box.checked).length;
    if (all) {
      all.checked = chosen > 0 && chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
    }
    form.hidden = boxes.length === 0;
    form.querySelector("[data-chosen]").textContent = `${chosen} chosen:`;
    for (const b of form.querySelectorAll("button")) b.disabled = chosen === 0;
  };
  document.addEventListener("change", (e) => {
    if (!e.target.matches("[data-all], input[form=several]")) return;
    if (e.target.matches("[data-all]")) for (const box of document.querySelectorAll("input[form=several]")) box.checked = e.target.checked;
    count();
    say(document.querySelector("[data-chosen]").textContent);
  });
  count();
  window.addEventListener("pageshow", count); // a browser that goes back keeps what was chosen
  // What cannot be undone takes a second press.
  document.addEventListener("click", (e) => {
    const b = e.target.closest("button[data-sure]");
    if (!b || b.classList.contains("sure")) return;
    e.preventDefault();
    const text = b.textContent, label = b.getAttribute("aria-label");
    b.classList.add("sure");
    b.textContent = `${text} – sure?`;
    if (label) b.setAttribute("aria-label", `${label}: sure?`);
    say(`Press again: ${label || text}`);
    setTimeout(() => { b.classList.remove("sure"); b.textContent = text; if (label) b.setAttribute("aria-label", label); }, 5000);
  });
  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (e) => {
    if (e.defaultPrevented || e.target.method !== "post") return;
    if (e.target.dataset.sent) { e.preventDefault(); return; }
    e.target.dataset.sent = "yes";
    for (const b of e.target.querySelectorAll("button")) b.setAttribute("aria-busy", "true");
  });
  window.addEventListener("pageshow", () => { for (const f of document.querySelectorAll("form[data-sent]")) delete f.dataset.sent; });

  // The secret of a link is in the address's fragment, and leaves it at once.
  const link = document.getElementById("link");
  if (link) {
    link.elements.secret.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    link.querySelector("button").focus();
  }
  for (const el of document.querySelectorAll("input.secret")) el.addEventListener("focus", () => el.select());

  window.drowse = { token, say, span };
})();
