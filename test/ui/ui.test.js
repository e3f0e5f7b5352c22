import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, adminKey, api, create, drowse, makeKey, signedIn, start, stop, url, view, visitor } from "./world.js";

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
