import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { adminKey, api, create, makeKey, patience, serveFiles, signedIn, start, stop, url, view } from "./world.js";

before(start);
after(stop);

test("create, snapshot, go back, fork, preview", async () => {
  const { page, context, problems } = await signedIn();
  await page.getByRole("link", { name: "New sandbox" }).click();
  await view(page, "new");
  await page.getByLabel("Name", { exact: true }).fill("made-here");
  await page.getByLabel("Timeout", { exact: true }).fill("soon");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("alert").filter({ hasText: '"soon" is not a duration' }).waitFor();
  assert.equal(await page.getByLabel("Name", { exact: true }).inputValue(), "made-here", "what was written is kept");
  await page.getByLabel("Timeout", { exact: true }).fill("1h");
  await page.getByLabel("then").first().selectOption("pause");
  await page.getByLabel("Metadata", { exact: true }).fill("team=blue\nkind=a=b");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "made-here" }).waitFor();
  const id = new URL(page.url()).pathname.split("/")[3];
  const sb = await api("GET", `/v1/sandboxes/${id}`);
  assert.deepEqual(sb.metadata, { team: "blue", kind: "a=b" });
  assert.equal(sb.name, "made-here");
  await page.goto(`${url}/ui/?id=made-here`);
  await page.waitForURL(`${url}/ui/sandboxes/${id}`);
  assert.equal(sb.timeoutSeconds, 3600);
  assert.equal(sb.settings.onTimeout, "pause");

  await serveFiles(id, 8000, { "index.html": "first" });
  await page.getByRole("link", { name: "Snapshots" }).last().click();
  await page.getByLabel("Name").fill("before-it");
  await page.getByRole("button", { name: "Take a snapshot" }).click();
  await page.getByRole("status").filter({ hasText: "Snapshot before-it is taken" }).waitFor();
  await page.getByRole("button", { name: /^Go back to/ }).click();
  await page.getByRole("status").filter({ hasText: "is what it was then" }).waitFor();
  await page.getByRole("button", { name: "Undo the last restore" }).waitFor();
  await page.getByRole("rowheader", { name: /^before-it s\w+ now$/ }).waitFor();
  await page.getByLabel("Name").fill("another-way");
  await page.getByRole("button", { name: "Take a snapshot" }).click();
  await page.getByRole("rowheader", { name: /^another-way s\w+ now after before-it$/ }).waitFor();
  assert.deepEqual(await page.getByRole("rowheader").evaluateAll((all) => all.map((el) => el.className)), ["depth-0", "depth-1", "depth-1"], "two ways from one snapshot");
  await view(page, "snapshots");

  await page.getByRole("link", { name: "Previews" }).click();
  await page.getByLabel("Port").fill("8000");
  await page.getByRole("button", { name: "Make a link" }).click();
  const link = await page.getByLabel("Copy it now").inputValue();
  await view(page, "previews");
  const other = await context.newPage();
  await other.goto(link);
  await other.getByText("first").waitFor();
  await page.getByRole("button", { name: /^Revoke/ }).click();
  await page.getByRole("status").filter({ hasText: "revoked" }).waitFor();
  assert.deepEqual((await api("GET", `/v1/sandboxes/${id}/previews`)).previews, []);

  await page.goto(`${url}/ui/sandboxes/${id}`);
  await page.getByText("More", { exact: true }).click();
  await page.getByRole("button", { name: "Fork" }).click();
  await page.getByRole("status").filter({ hasText: `a fork of ${id}` }).waitFor();
  const child = new URL(page.url()).pathname.split("/")[3];
  assert.notEqual(child, id);
  await page.goto(`${url}/ui/snapshots`);
  const remove = page.getByRole("row").filter({ hasText: "before-it" }).getByRole("button", { name: /^Delete/ });
  await remove.click();
  await page.getByRole("button", { name: /sure\?$/ }).click();
  await page.getByRole("status").filter({ hasText: "is deleted" }).waitFor();
  assert.deepEqual(problems, []);
  for (const one of [id, child]) await api("DELETE", `/v1/sandboxes/${one}`);
});

test("keys and quotas; a key that is revoked while somebody is signed in", async () => {
  const { page, problems } = await signedIn();
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByText("New key").click();
  const made = page.locator("form").filter({ has: page.getByRole("button", { name: "Make the key" }) });
  await made.getByLabel("Name").fill("of the <b>test</b>");
  await made.getByLabel("Role").selectOption("own");
  await made.getByLabel("At most running").fill("3");
  await made.getByRole("button").click();
  const text = await page.getByLabel("Copy it now").inputValue();
  assert.match(text, /^e2b_[0-9a-f]{40}$/);
  await page.reload();
  assert.equal(await page.getByLabel("Copy it now").count(), 0, "a key is shown once");
  const row = page.getByRole("row").filter({ hasText: "of the <b>test</b>" });
  await row.filter({ hasText: "of 3" }).waitFor();
  await page.getByText("Change limits").click();
  const limits = page.locator("form").filter({ has: page.getByRole("button", { name: "Change the limits" }) });
  await limits.getByLabel("Key").selectOption(await limits.getByRole("option", { name: "of the <b>test</b>" }).getAttribute("value"));
  await limits.getByLabel("At most running").fill("1");
  await limits.getByRole("button").click();
  await row.filter({ hasText: "of 1" }).waitFor();
  await view(page, "keys");
  const { id } = (await api("GET", "/v1/keys")).keys.find((k) => k.name === "of the <b>test</b>");

  const own = await signedIn(text);
  assert.equal(await own.page.getByRole("link", { name: "Keys" }).count(), 0);
  const denied = await own.page.goto(`${url}/ui/keys`);
  assert.equal(denied.status(), 403);
  const mine = await create({ metadata: { name: "an admin's" } });
  await own.page.goto(`${url}/ui/`);
  assert.equal(await own.page.getByText(mine.id).count(), 0);
  assert.equal((await own.page.goto(`${url}/ui/sandboxes/${mine.id}`)).status(), 404);
  await own.page.goto(`${url}/ui/new`);
  await own.page.getByRole("button", { name: "Create" }).click();
  await own.page.getByRole("status").filter({ hasText: "is running" }).waitFor();
  await own.page.goto(`${url}/ui/new`);
  await own.page.getByRole("button", { name: "Create" }).click();
  await own.page.getByRole("alert").waitFor(); // it has one already
  await own.page.goto(`${url}/ui/`);
  await own.page.locator("body[data-following]").waitFor();
  await page.getByRole("button", { name: "Revoke of the" }).click();
  await page.getByRole("button", { name: /sure\?$/ }).click();
  await page.getByRole("status").filter({ hasText: "revoked" }).waitFor();
  await own.page.getByRole("heading", { name: "Sign in" }).waitFor(); // by itself
  assert.deepEqual([...problems, ...own.problems], []);

  const read = await signedIn((await makeKey("read")).key);
  await read.page.goto(`${url}/ui/sandboxes/${mine.id}`);
  await read.page.getByText("an admin's").first().waitFor();
  for (const name of ["Pause", "More", "Terminal", "Files"]) assert.equal(await read.page.getByText(name, { exact: true }).count(), 0, name);
  await api("DELETE", `/v1/sandboxes/${mine.id}`);
  for (const sb of (await api("GET", "/v1/sandboxes")).sandboxes.filter((s) => s.key === id)) await api("DELETE", `/v1/sandboxes/${sb.id}`);
});

test("volumes, and who mounts them", async () => {
  const { page, problems } = await signedIn((await makeKey("full")).key);
  await page.getByRole("link", { name: "Volumes" }).click();
  await page.getByText("No volumes").waitFor();
  await page.getByLabel("Name").fill("shared-data");
  await page.getByLabel("At most, MiB").fill("64");
  await page.getByRole("button", { name: "Make a volume" }).click();
  await page.getByRole("status").filter({ hasText: "The volume shared-data is made" }).waitFor();
  const sb = await create({ name: "mounts-it", volumes: { "/data": "shared-data" } });
  await page.reload();
  const row = page.getByRole("row").filter({ hasText: "shared-data" });
  await row.getByRole("link", { name: /^mounts-it/ }).waitFor();
  await view(page, "volumes");
  const remove = async () => {
    await page.getByRole("button", { name: "Delete shared-data" }).click();
    await page.getByRole("button", { name: /sure\?$/ }).click();
  };
  await remove();
  await page.getByRole("alert").filter({ hasText: sb.id }).filter({ hasText: "Next step" }).waitFor();
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
  await remove();
  await page.getByText("No volumes").waitFor();
  assert.deepEqual(problems, []);
  const own = await signedIn((await makeKey("own")).key);
  assert.equal(await own.page.getByRole("link", { name: "Volumes" }).count(), 0);
});

test("the server", async () => {
  const sb = await create({ metadata: { name: "counted" } });
  const name = "<i>a hostile key</i>";
  const { key } = await makeKey("full", name);
  await api("POST", `/v1/sandboxes/${sb.id}/pause`, {}, key);
  const { page, problems } = await signedIn();
  await page.getByRole("link", { name: "Server" }).click();
  await page.getByText("ready", { exact: true }).waitFor();
  await page.getByRole("definition").filter({ hasText: /used, .* free/ }).waitFor();
  await page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "paused", exact: true }) }).waitFor();
  await page.getByRole("row").filter({ hasText: name }).filter({ hasText: `POST /v1/sandboxes/${sb.id}/pause` }).waitFor();
  const host = page.getByRole("table", { name: "What the server has found of its host" });
  await host.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "runtime gvisor" }) }).filter({ hasText: "a trial sandbox has started" }).filter({ has: page.getByRole("cell", { name: "ok", exact: true }) }).waitFor();
  for (const name of ["kernel", "disk", "overlayfs", "cgroups", "memory", "template base"]) await host.getByRole("rowheader", { name, exact: true }).waitFor();
  assert.equal((await api("GET", "/v1/doctor")).ok, true);
  await assert.rejects(api("GET", "/v1/doctor", undefined, key), { status: 403 });
  await view(page, "server");
  await page.setViewportSize({ width: 360, height: 740 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a narrow page scrolls sideways");
  await page.locator("body[data-following]").waitFor();
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
  await page.getByRole("row").filter({ hasText: `DELETE /v1/sandboxes/${sb.id}` }).waitFor(); // by itself
  const full = await signedIn(key);
  assert.equal(await full.page.getByRole("link", { name: "Server" }).count(), 0);
  assert.equal((await full.page.goto(`${url}/ui/server`)).status(), 403);
  assert.deepEqual([...problems, ...full.problems], []);
});

test("webhooks and their deliveries", async () => {
  const got = [];
  const receiver = createServer((req, resp) => { req.resume().on("end", () => { got.push(req.headers); resp.end(); }); });
  await new Promise((ok) => receiver.listen(0, "127.0.0.1", ok));
  try {
    const { page, problems } = await signedIn();
    await page.getByRole("link", { name: "Webhooks" }).click();
    await page.getByText("New webhook").click();
    await page.getByLabel("Name").fill("receiver");
    await page.getByLabel("URL").fill(`http://127.0.0.1:${receiver.address().port}/`);
    await page.getByRole("button", { name: "Make the webhook" }).click();
    assert.ok((await page.getByLabel("Copy it now").inputValue()).length > 30);
    await view(page, "webhooks");
    const sb = await create();
    await page.getByRole("link", { name: "receiver" }).click();
    const row = page.getByRole("row").filter({ hasText: "sandbox.lifecycle.created" });
    await row.filter({ hasText: "200 delivered" }).first().waitFor({ timeout: patience });
    assert.ok(got.length > 0);
    await view(page, "webhook");
    await page.getByRole("button", { name: /^Delete/ }).click();
    await page.getByRole("button", { name: /sure\?$/ }).click();
    await page.getByRole("heading", { name: "Webhooks" }).waitFor();
    await page.getByText("No webhooks").waitFor();
    await api("DELETE", `/v1/sandboxes/${sb.id}`);
    assert.deepEqual(problems, []);
  } finally {
    receiver.closeAllConnections();
    receiver.close();
  }
});

test("templates and builds", async () => {
  const request = await api("POST", "/v3/templates", { name: "built-for-the-dashboard" });
  await api("POST", `/v2/templates/${request.templateID}/builds/${request.buildID}`, { fromTemplate: "base", steps: [{ type: "RUN", args: ["echo said-by-the-build"] }] });
  const { page, problems } = await signedIn();
  await page.getByRole("link", { name: "Templates" }).click();
  await page.getByRole("link", { name: "base" }).first().waitFor();
  await view(page, "templates");
  const line = page.getByText("said-by-the-build").first();
  for (const end = Date.now() + patience; ; ) {
    await page.goto(`${url}/ui/templates/${request.templateID}`);
    if (await line.count()) break;
    assert.ok(Date.now() < end, "the log of the build does not come");
    await page.waitForTimeout(500);
  }
  await view(page, "template");
  assert.deepEqual(problems, []);
});
