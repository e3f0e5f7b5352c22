import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, api, create, makeKey, signedIn, start, stop, url, view } from "./world.js";

before(start);
after(stop);

test("the last hour, and several at once, by keyboard", async () => {
  const { key } = await makeKey("own"); // other cases have sandboxes too
  const call = (method, path, body) => api(method, path, body, key);
  const hostile = `<img src=x onerror=alert(1)>"'`;
  const ids = [];
  for (const name of ["first", "second", hostile]) ids.push((await call("POST", "/v1/sandboxes", { metadata: { name }, onTimeout: "pause" })).id);
  const { page, problems } = await signedIn(key);
  const row = (id) => page.getByRole("row").filter({ hasText: id });
  const box = (id) => page.getByRole("checkbox", { name: id });
  await page.locator("body[data-following]").waitFor();

  await row(ids[0]).getByRole("img", { name: /^Last hour: awake \d+s,.* not there yet 59m/ }).waitFor();
  await row(ids[2]).locator("svg.life title", { hasText: "not there yet" }).waitFor({ state: "attached" });
  await page.getByText(/^3 awake, 0 asleep · 0 wakes in the last .* of memory in use$/).waitFor();

  const pause = page.getByRole("button", { name: "Pause the chosen sandboxes" });
  assert.ok(await pause.isDisabled(), "with nothing chosen there is nothing to do");
  await box(ids[0]).focus();
  await page.keyboard.press("Space");
  await box(ids[2]).focus();
  await page.keyboard.press("Space");
  await page.getByText("2 chosen:", { exact: true }).first().waitFor();
  assert.equal(await page.getByRole("checkbox", { name: "Choose all" }).evaluate((all) => all.indeterminate), true);
  await call("POST", `/v1/sandboxes/${ids[1]}/holds`, { reason: "meanwhile", seconds: 900 });
  await row(ids[1]).filter({ hasText: "lease: meanwhile" }).waitFor(); // the rows were drawn anew
  assert.ok(await box(ids[0]).isChecked() && await box(ids[2]).isChecked() && !await box(ids[1]).isChecked(), "what was chosen stays so");
  assert.ok(await box(ids[2]).evaluate((el) => el === document.activeElement), "the focus stays");
  await box(ids[1]).evaluate((el) => { el.held = true; });
  await box(ids[1]).focus();
  await page.keyboard.down("Space");
  await call("PATCH", `/v1/sandboxes/${ids[1]}`, { metadata: { name: "renamed" } });
  for (let n = 0; n < 3; n++) await page.waitForResponse((r) => r.url().endsWith("/ui/")); // asked for anew, and not drawn
  assert.ok(await box(ids[1]).evaluate((el) => el.held), "what is pressed stays");
  await page.keyboard.up("Space");
  await page.getByText("3 chosen:", { exact: true }).first().waitFor();
  await row(ids[1]).filter({ hasText: "renamed" }).waitFor(); // soon after
  await box(ids[1]).uncheck();
  await accessible(page, "chosen rows");
  await pause.press("Enter");
  await page.getByRole("status").filter({ hasText: "2 of 2 chosen sandboxes are paused" }).waitFor();

  await page.getByRole("checkbox", { name: "Choose all" }).check();
  await page.getByRole("button", { name: "Resume the chosen sandboxes" }).click();
  await page.getByRole("status").filter({ hasText: "3 of 3 chosen sandboxes are running" }).waitFor();
  await page.getByText(/^3 awake, 0 asleep · 2 wakes in the last /).waitFor();
  await box(ids[0]).check();
  await box(ids[1]).check();
  await call("POST", `/v1/sandboxes/${ids[0]}/pause`); // by somebody else
  await pause.click();
  const alert = page.getByRole("alert").filter({ hasText: "1 of 2 chosen sandboxes are paused" });
  await alert.getByRole("listitem").filter({ hasText: ids[0] }).filter({ hasText: "Next step" }).waitFor();
  await accessible(page, "one of several failed");

  await page.setViewportSize({ width: 360, height: 740 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a narrow page scrolls sideways");
  await page.getByRole("checkbox", { name: "Choose all" }).check();
  const kill = page.getByRole("button", { name: "Kill the chosen sandboxes" });
  await kill.press("Enter");
  assert.equal((await call("GET", "/v1/sandboxes")).sandboxes.length, 3, "one press kills nothing");
  await kill.press("Enter");
  await page.getByRole("status").filter({ hasText: "3 of 3 chosen sandboxes are killed" }).waitFor();
  assert.deepEqual((await call("GET", "/v1/sandboxes")).sandboxes, []);
  await kill.waitFor({ state: "hidden" }); // nothing is left to choose

  const sb = await create();
  const read = await signedIn((await makeKey("read")).key);
  await read.page.getByRole("row").filter({ hasText: sb.id }).getByRole("img", { name: /^Last hour/ }).waitFor();
  assert.equal(await read.page.getByRole("checkbox").count(), 0);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
  assert.deepEqual([...problems, ...read.problems], []);
});

test("settings of a sandbox", async () => {
  const sb = await create({ metadata: { name: "to change", team: "blue" }, onTimeout: "pause", idleTimeoutSeconds: 5400 });
  const { page, problems } = await signedIn();
  await page.goto(`${url}/ui/sandboxes/${sb.id}`);
  await page.getByRole("link", { name: "Settings" }).click();
  const idle = page.getByLabel("Idle timeout");
  assert.equal(await idle.inputValue(), "1h30m");
  await view(page, "settings");
  await idle.fill("soon");
  await page.getByLabel("Traffic wakes it").selectOption("yes");
  await page.getByLabel("Metadata").fill("name=to change\nteam=<b>red</b>");
  await page.getByRole("button", { name: "Change" }).click();
  await page.getByRole("alert").filter({ hasText: '"soon" is not a duration' }).filter({ hasText: "Next step" }).waitFor();
  assert.equal(await page.getByLabel("Metadata").inputValue(), "name=to change\nteam=<b>red</b>", "what was written is kept");
  await accessible(page, "settings that were refused");
  await api("PATCH", `/v1/sandboxes/${sb.id}`, { maxLifetimeSeconds: 36000 }); // by somebody else
  await idle.fill("2h");
  await page.getByLabel("Always allowed").fill("192.0.2.1\n198.51.100.0/24");
  await page.setViewportSize({ width: 360, height: 740 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a narrow page scrolls sideways");
  await page.getByRole("button", { name: "Change" }).press("Enter");
  await page.getByRole("status").filter({ hasText: "Changed: allowOut, autoResume, idleTimeout, metadata." }).waitFor();
  const now = await api("GET", `/v1/sandboxes/${sb.id}`);
  assert.deepEqual(now.metadata, { name: "to change", team: "<b>red</b>" });
  assert.deepEqual(now.allowOut, ["192.0.2.1", "198.51.100.0/24"]);
  assert.deepEqual([now.settings.idleTimeoutSeconds, now.settings.maxLifetimeSeconds, now.settings.autoResume], [7200, 36000, true]);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
  assert.deepEqual(problems, []);
});
