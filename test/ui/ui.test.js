import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, adminKey, api, create, drowse, makeKey, patience, signedIn, start, stop, url, view, visitor } from "./world.js";

before(start);
after(stop);

test("sign-in, and what a stranger sees", async () => {
  const { page, problems, context } = await visitor();
  await page.goto(url + "/ui/");
  assert.match(page.url(), /\/ui\/sign-in/);
  await view(page, "sign-in");
  await page.getByLabel("API key").fill("e2b_00000000000000000000000000000000");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").filter({ hasText: "unknown API key" }).waitFor();
  await page.getByLabel("API key").fill(adminKey);
  await page.getByLabel("API key").press("Enter");
  await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  const [cookie, ...others] = await context.cookies();
  assert.deepEqual(others, []);
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, "Strict");
  assert.equal(cookie.path, "/ui");
  assert.equal(cookie.domain, "127.0.0.1", "the cookie is of this host alone");
  assert.ok(!cookie.value.includes(adminKey.slice(4)));
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("heading", { name: "Sign in" }).waitFor();
  await context.addCookies([cookie]);
  await page.goto(url + "/ui/");
  assert.match(page.url(), /\/ui\/sign-in/, "the session ended at the server too");
  assert.deepEqual(problems, []);
});

test("a link of drowse ui signs in once", async () => {
  const link = await drowse("ui");
  const first = await visitor();
  await first.page.goto(link);
  assert.equal(first.page.url(), url + "/ui/link", "the secret leaves the address");
  await first.page.getByRole("button", { name: "Sign in" }).click();
  await first.page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  assert.deepEqual(first.problems, []);
  const second = await visitor();
  await second.page.goto(link);
  await second.page.getByRole("button", { name: "Sign in" }).click();
  await second.page.getByText("used already").waitFor();
});

test("the fleet and one sandbox follow what happens, and keep nothing awake", async () => {
  const sb = await create({ idleTimeoutSeconds: 6, onIdle: "pause", autoResume: true, timeoutSeconds: 3600, onTimeout: "pause", metadata: { name: "watched" } });
  const fleet = await signedIn();
  const one = await fleet.context.newPage();
  await one.goto(`${url}/ui/sandboxes/${sb.id}`);
  await one.locator("body[data-following]").waitFor();
  const row = fleet.page.getByRole("row").filter({ hasText: sb.id });
  await row.locator(".state.s-paused").waitFor(); // though two pages watch it
  await one.locator("[data-live=state] .s-paused").waitFor();
  await one.getByText("the next request to it, or a resume, wakes it").waitFor();
  await one.getByRole("rowheader", { name: "paused", exact: true }).first().waitFor();
  // They go on watching, and it sleeps on.
  await one.reload();
  await fleet.page.reload();
  await one.goto(`${url}/ui/sandboxes/${sb.id}/log`);
  await one.locator(".log .text").first().waitFor();
  await view(one, "log");
  assert.equal((await api("GET", `/v1/sandboxes/${sb.id}`)).state, "paused");
  await one.goto(`${url}/ui/sandboxes/${sb.id}`);
  await one.getByRole("button", { name: "Resume" }).click();
  await one.getByRole("status").filter({ hasText: "is running" }).waitFor();
  await one.locator("[data-live=state] .s-running").waitFor();
  await one.getByRole("button", { name: "Pause" }).click();
  await one.getByRole("status").filter({ hasText: "is paused" }).waitFor();
  const readout = one.getByRole("slider", { name: "Time to read in the charts" });
  await readout.waitFor();
  await one.evaluate(() => scrollTo(0, 0));
  await view(one, "sandbox");
  const others = [await create({ metadata: { name: "a build" }, timeoutSeconds: 1800, idleTimeoutSeconds: 600, onTimeout: "pause" }), await create({ metadata: { name: "a long talk" }, autoResume: true, onTimeout: "pause", timeoutSeconds: 3600 })];
  await api("POST", `/v1/sandboxes/${others[0].id}/holds`, { reason: "compiling", seconds: 900 });
  await fleet.page.getByRole("row").filter({ hasText: others[0].id }).filter({ hasText: "lease: compiling" }).waitFor();
  await accessible(fleet.page, "the fleet");
  for (const other of others) await api("DELETE", `/v1/sandboxes/${other.id}`);
  await one.setViewportSize({ width: 360, height: 740 });
  await accessible(one, "a narrow sandbox");
  assert.ok(await one.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a narrow page scrolls sideways");
  await one.getByText("More", { exact: true }).press("Enter");
  const kill = one.getByRole("button", { name: new RegExp(`^Kill ${sb.id}`) });
  await kill.press("Enter");
  assert.equal((await api("GET", `/v1/sandboxes/${sb.id}`)).state, "paused", "one press kills nothing");
  await kill.press("Enter");
  await one.getByText("its data is deleted").waitFor();
  await fleet.page.goto(`${url}/ui/?state=terminated`);
  await fleet.page.getByRole("row").filter({ hasText: sb.id }).waitFor();
  assert.deepEqual([...fleet.problems], []);
});

test("charts are read by pointer, by keyboard and as a table, and go on meanwhile", async () => {
  const sb = await create({ timeoutSeconds: 3600, onTimeout: "pause", metadata: { name: "measured" } });
  const used = async () => api("GET", `/v1/sandboxes/${sb.id}/usage`).then((u) => u.samples.length);
  const measured = async (n) => { for (const end = Date.now() + patience; await used() < n;) { assert.ok(Date.now() < end, "it is measured"); await new Promise((r) => setTimeout(r, 200)); } };
  await measured(2);
  await api("POST", `/v1/sandboxes/${sb.id}/pause`, {});
  await api("POST", `/v1/sandboxes/${sb.id}/resume`, {});
  await measured(await used() + 2);
  const { page, problems } = await signedIn();
  await page.goto(`${url}/ui/sandboxes/${sb.id}`);
  const memory = page.getByRole("img", { name: /^Memory from .* slept, 1 time$/ });
  await memory.waitFor();
  assert.equal(await memory.locator("polyline").count(), 2, "no line crosses the sleep");
  assert.match(await memory.locator("text.y").last().textContent(), /^\d+(\.5)? [KMG]iB$/);

  const readout = page.getByRole("slider", { name: "Time to read in the charts" });
  const hint = await readout.textContent();
  await memory.hover();
  const pointed = await readout.textContent();
  assert.match(pointed, /^\d{4}-.* UTC: Processor [\d.]+%, Memory .* [KMG]iB, Disk .*B$/);
  assert.equal(await page.locator(".chart .cursor").count(), 3, "each chart has a cursor");
  await page.mouse.move(1, 1);
  assert.equal(await readout.textContent(), hint);
  assert.equal(await page.locator(".cursor").count(), 0);

  await readout.focus();
  await page.keyboard.press("Home");
  const first = await readout.textContent();
  assert.equal(await readout.getAttribute("aria-valuetext"), first);
  assert.equal(await readout.getAttribute("aria-valuenow"), "0");
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await readout.textContent(), first);
  await page.keyboard.press("ArrowLeft");
  await page.getByText("Values", { exact: true }).click();
  const rows = page.getByRole("table", { name: "Values of the charts" }).locator("tbody tr");
  const more = async () => { const n = await rows.count(); await page.waitForFunction((n) => document.querySelectorAll(".values tbody tr").length > n, n); };
  assert.ok(await rows.count() >= 4);
  // The page follows the server, and leaves what is read, the focus and the open table alone.
  await memory.hover();
  await more();
  assert.match(await readout.textContent(), / UTC: Processor /, "a pointer that rests reads on");
  await readout.focus();
  await page.keyboard.press("Home");
  await more();
  assert.equal(await readout.textContent(), first);
  assert.equal(await page.locator(".chart .cursor").count(), 3);
  assert.ok(await readout.evaluate((el) => el === document.activeElement), "the focus stays");
  assert.ok(await rows.first().isVisible(), "the table stays open");
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    await accessible(page, `charts (${colorScheme})`);
  }
  await page.setViewportSize({ width: 360, height: 740 });
  await accessible(page, "narrow charts");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a narrow page scrolls sideways");
  if (process.env.DROWSE_LOOK) for (const [width, dark] of [[360, false], [1280, false], [1280, true]]) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
    await readout.scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${process.env.DROWSE_LOOK}/charts-${width}${dark ? "-dark" : ""}.png`, fullPage: true });
  }

  const plain = await page.context().browser().newContext({ javaScriptEnabled: false, viewport: { width: 1280, height: 800 } });
  await plain.addCookies(await page.context().cookies());
  const still = await plain.newPage();
  await still.goto(`${url}/ui/sandboxes/${sb.id}`);
  await still.getByRole("img", { name: /^Memory from / }).waitFor();
  await still.getByText("Values", { exact: true }).click();
  assert.ok(await still.getByRole("table", { name: "Values of the charts" }).locator("tbody tr").first().isVisible());
  assert.equal(await still.getByRole("slider").count(), 0);
  await plain.close();
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
  assert.deepEqual(problems, []);
});
