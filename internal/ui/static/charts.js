"use strict";
// What the charts of a sandbox's use say at one time: under the pointer, or by the arrow
// keys. It is read from the table of values, which is there without this too.
(() => {
  const readout = document.querySelector("[data-readout]");
  const region = document.querySelector("[data-live=use]");
  if (!readout || !region) return;
  const hint = readout.textContent;
  let rows = [], names = []; // rows are the oldest first
  let at = null; // the time that is read, which survives a refresh

  const timeOf = (row) => Date.parse(row.querySelector("time").dateTime);
  const nearest = (far) => rows.reduce((best, row, n) => far(row) < far(rows[best]) ? n : best, 0);
  const textOf = (row) => `${row.cells[0].textContent} UTC: ${names.map((name, n) => `${name} ${row.cells[n + 1].textContent}`).join(", ")}`;
  const chosen = () => at === null ? rows.length - 1 : nearest((row) => Math.abs(timeOf(row) - at));

  const part = (name, attributes, text = "") => {
    const el = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
    el.textContent = text;
    return el;
  };
  const show = () => {
    for (const old of region.querySelectorAll(".cursor")) old.remove();
    readout.hidden = rows.length === 0;
    if (!rows.length) return;
    const n = chosen(), row = rows[n], { x, y } = row.dataset, text = textOf(row);
    readout.setAttribute("aria-valuemax", rows.length - 1);
    readout.setAttribute("aria-valuenow", n);
    readout.setAttribute("aria-valuetext", text);
    readout.textContent = at === null ? hint : text;
    readout.classList.toggle("reads", at !== null);
    if (at === null) return;
    const heights = y.split(",");
    [...region.querySelectorAll(".chart")].forEach((chart, n) => {
      const cursor = part("g", { class: "cursor" });
      cursor.append(part("line", { x1: `${x}%`, x2: `${x}%`, y1: "0", y2: "100%" }));
      if (heights[n]) cursor.append(part("circle", { cx: `${x}%`, cy: `${heights[n]}%`, r: "3.5" }));
      const right = Number(x) < 50;
      cursor.append(part("text", { x: `${x}%`, y: "0", dx: right ? "6" : "-6", dy: "1em", "text-anchor": right ? "start" : "end" }, row.cells[n + 1].textContent));
      chart.append(cursor);
    });
  };
  const load = () => {
    rows = [...region.querySelectorAll("tbody tr[data-x]")].reverse();
    names = [...region.querySelectorAll("thead th")].slice(1).map((th) => th.textContent);
    show();
  };
  const go = (n) => {
    at = timeOf(rows[Math.max(0, Math.min(rows.length - 1, n))]);
    show();
  };

  const point = (e) => {
    const chart = e.target.closest(".chart");
    if (!chart || !rows.length) return;
    const box = chart.getBoundingClientRect(), x = 100 * (e.clientX - box.left) / box.width;
    go(nearest((row) => Math.abs(row.dataset.x - x)));
  };
  region.addEventListener("pointermove", point);
  region.addEventListener("pointerdown", point);
  const leave = () => { if (document.activeElement !== readout && at !== null) { at = null; show(); } };
  region.addEventListener("pointerout", (e) => {
    if (e.pointerType === "mouse" && e.target.closest(".chart") && !e.relatedTarget?.closest?.(".chart")) leave();
  });
  readout.addEventListener("focus", () => { if (rows.length) go(chosen()); });
  readout.addEventListener("blur", () => { at = null; show(); });
  readout.addEventListener("keydown", (e) => {
    const n = chosen(), last = rows.length - 1;
    const to = { ArrowLeft: n - 1, ArrowDown: n - 1, ArrowRight: n + 1, ArrowUp: n + 1, PageDown: n - 10, PageUp: n + 10, Home: 0, End: last }[e.key];
    if (to === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    go(to);
  });
  new MutationObserver(load).observe(region, { childList: true });
  load();
})();
