import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { accessible, patience, signedIn, start, stop, view } from "./world.js";

before(start);
after(stop);

test("a few sandboxes with a past", async () => {
  const server = spawn(process.env.DROWSE_MANY, ["-count", "0", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [line] = await once(createInterface(server.stdout), "line", { signal: AbortSignal.timeout(patience) });
    const [base, key] = line.split(" ");
    const { page, problems } = await signedIn(key, {}, base);
    const bar = (name) => page.getByRole("row").filter({ hasText: name }).getByRole("img", { name: /^Last hour/ });
    // Each part has its share of the bar, its length and its cause.
    await bar("experiment").waitFor();
    const [whole, parts] = await page.evaluate(() => { // at once: the page follows the server
      const row = [...document.querySelectorAll("tr")].find((row) => row.textContent.includes("experiment"));
      const width = (el) => el.getBoundingClientRect().width;
      return [width(row.querySelector("svg.life")), [...row.querySelectorAll("svg.life rect")].map((el) => [el.className.baseVal, Math.round(width(el)), el.textContent])];
    });
    assert.deepEqual(parts.map(([state]) => state), ["s-none", "s-running", "s-paused"]);
    for (const [n, minutes] of [[0, 46], [1, 5], [2, 9]]) assert.ok(Math.abs(parts[n][1] - whole * minutes / 60) <= 2, `${parts[n]} of ${whole}`);
    assert.match(parts[1][2], /^running for 5m 00s, from .*, because of call$/);
    assert.match(await bar("nightly-report").getAttribute("aria-label"), /^Last hour: asleep 1h 00m$/);
    await page.getByText(/^5 awake, 4 asleep · \d+ wakes in the last hour/).waitFor();
    assert.ok(await page.locator(".scroll").evaluate((el) => el.scrollWidth <= el.clientWidth), "the table is wider than a page of 1280");
    await view(page, "fleet");
    // How each sleeps is beside its state.
    await page.getByRole("row").filter({ hasText: "experiment" }).getByText("stands by · 4.0 KiB kept").waitFor();
    await page.getByRole("row").filter({ hasText: "nightly-report" }).getByText(/^0 · 4.0 KiB kept$/).waitFor();
    for (const [name, sleep, story] of [["experiment", "light", "It has slept lightly for "], ["nightly-report", "deep", "using no memory"]]) {
      await page.getByRole("link", { name: new RegExp("^" + name) }).click();
      await page.locator("[data-live=state]").filter({ hasText: `paused ${sleep} sleep` }).waitFor();
      await page.getByText(story).waitFor();
      await accessible(page, `${sleep} sleep`);
      await page.goBack();
    }
    // Its use is drawn below a limit that is near, and with gaps where it slept.
    await page.getByRole("link", { name: /^data-analyst/ }).click();
    const memory = page.getByRole("img", { name: /^Memory from .* of 2\.0 GiB; between .* slept, 2 times$/ });
    await memory.waitFor();
    assert.equal(await memory.locator("polyline").count(), 3);
    assert.deepEqual(await memory.locator("text.y").allTextContents(), ["0 B", "512 MiB", "1 GiB", "1.5 GiB", "2 GiB"]);
    assert.equal(await memory.locator("line.limit").count(), 1);
    assert.equal(await page.getByRole("img", { name: /^Disk from/ }).locator("line.limit").count(), 0, "a limit that is far is not drawn");
    await page.getByRole("heading", { name: "Use", exact: true }).scrollIntoViewIfNeeded();
    await page.evaluate(() => document.getElementById("use").scrollIntoView());
    await memory.hover();
    await view(page, "use");
    assert.deepEqual(problems, []);
  } finally {
    server.kill();
  }
});

test("ten thousand sandboxes", async () => {
  const server = spawn(process.env.DROWSE_MANY, ["127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [line] = await once(createInterface(server.stdout), "line", { signal: AbortSignal.timeout(patience) });
    const [base, key] = line.split(" ");
    const { page, problems } = await signedIn(key, {}, base);
    for (const text of ["running 6666", "paused 3334"]) await page.getByRole("link", { name: text }).waitFor();
    const rows = page.locator("tbody tr");
    assert.equal(await rows.count(), 50);
    const took = await page.evaluate(async () => {
      const begun = performance.now();
      await (await fetch(location.href, { headers: { "X-Drowse-Token": window.drowse.token } })).text();
      return performance.now() - begun;
    });
    console.log(`a page of 10,000 sandboxes took ${Math.round(took)} ms, and has ${await page.locator("*").count()} elements`);
    assert.ok(await page.locator("*").count() < 3000, "a page has what it shows, and no more");
    const first = new Set(await page.locator("tbody code.id").allInnerTexts());
    await page.getByRole("link", { name: "Older sandboxes" }).click();
    await page.getByRole("link", { name: "Newest" }).waitFor();
    for (const id of await page.locator("tbody code.id").allInnerTexts()) assert.ok(!first.has(id), `${id} is on both pages`);
    await page.getByRole("link", { name: "paused 3334" }).click();
    await page.waitForURL(/state=paused/);
    assert.equal(await page.locator("tbody .state.s-paused").count(), 50);
    await page.getByLabel("Metadata, key=value").fill("part=3");
    await page.getByRole("button", { name: "Filter" }).click();
    await page.getByRole("link", { name: "paused 477" }).waitFor();
    await accessible(page, "the fleet, filtered");
    const id = await page.locator("tbody code.id").first().innerText();
    await page.getByLabel("Sandbox id").fill(id);
    await page.getByLabel("Sandbox id").press("Enter");
    await page.getByRole("heading", { name: id }).waitFor();
    await page.getByRole("button", { name: "Resume" }).press("Enter");
    await page.locator("[data-live=state] .s-running").waitFor();
    assert.deepEqual(problems, []);
  } finally {
    server.kill();
  }
});
