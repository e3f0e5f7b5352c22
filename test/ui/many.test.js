import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { accessible, patience, signedIn, start, stop } from "./world.js";

before(start);
after(stop);

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
