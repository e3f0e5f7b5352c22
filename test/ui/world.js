// What the cases share: a browser, a server, sandboxes to look at.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

export const url = process.env.DROWSE_URL;
export const adminKey = process.env.DROWSE_API_KEY;
// patience is for what should come at once, on a machine that does much else.
export const patience = 60_000;

const run = promisify(execFile);
export const drowse = async (...args) => (await run(process.env.DROWSE_BINARY, args)).stdout.trim();

/** Calls the API; the answer's JSON, or an error with its status. */
export async function api(method, path, body, key = adminKey) {
  const resp = await fetch(url + path, {
    method,
    headers: { "X-API-Key": key, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await resp.text();
  if (!resp.ok) throw Object.assign(new Error(`${method} ${path}: ${resp.status} ${text}`), { status: resp.status });
  return text ? JSON.parse(text) : undefined;
}

export const create = (o = {}) => api("POST", "/v1/sandboxes", o);
export const makeKey = (role, name = `${role} ${crypto.randomUUID()}`) => api("POST", "/v1/keys", { name, role });

let browser, profile;
export async function start() {
  profile = await mkdtemp(join(tmpdir(), "dwchromium."));
  browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"],
    env: { ...process.env, HOME: profile },
  });
}

export async function stop() {
  await browser?.close();
  if (profile) await rm(profile, { recursive: true, force: true });
}

/** A browser of its own, in which nobody has signed in. Errors of pages and
 * breaches of their policies are collected in problems. */
export async function visitor(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(patience);
  const problems = [];
  context.on("page", (page) => {
    page.on("pageerror", (e) => problems.push(`error: ${e.message}`));
    page.on("console", (m) => { if (m.type() === "error" && /Content Security Policy|Refused to/.test(m.text())) problems.push(m.text()); });
    page.on("dialog", (d) => { problems.push(`dialog: ${d.message()}`); d.dismiss(); });
  });
  return { context, page: await context.newPage(), problems };
}

/** The same, signed in with a key. */
export async function signedIn(key = adminKey, options = {}, base = url) {
  const who = await visitor(options);
  await who.page.goto(base + "/ui/");
  await who.page.getByLabel("API key").fill(key);
  await who.page.getByRole("button", { name: "Sign in" }).click();
  await who.page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  return who;
}

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Fails where axe finds something serious on a page. It runs in a world of its
 * own beside the page's, so that the page's policy holds for the page. */
export async function accessible(page, name) {
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const { executionContextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id, worldName: "axe" });
  const evaluate = async (expression, awaitPromise = false) => {
    const r = await session.send("Runtime.evaluate", { contextId: executionContextId, expression, awaitPromise, returnByValue: true });
    if (r.exceptionDetails) throw new Error(JSON.stringify(r.exceptionDetails).slice(0, 2000));
    return r.result.value;
  };
  await evaluate(axe);
  const found = await evaluate("axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.map((n) => n.html + ' ' + n.failureSummary) })))", true);
  await session.detach();
  const serious = found.filter((v) => v.impact === "serious" || v.impact === "critical");
  assert.deepEqual(serious, [], `${name} is not accessible`);
}

const shots = process.env.DROWSE_SCREENSHOTS;
const inDark = ["fleet", "sandbox"]; // of which there are pictures in the dark too
/** Checks a view, in both colour schemes, and takes its picture where one is asked for. */
export async function view(page, name) {
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    await accessible(page, `${name} (${colorScheme})`);
    if (shots) await page.evaluate(([state]) => { // a picture is of no machine of its own
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(state, "/var/lib/drowse");
    }, [process.env.DROWSE_STATE]);
    if (shots && (colorScheme === "light" || inDark.includes(name))) await page.screenshot({ path: join(shots, colorScheme === "dark" ? `${name}-dark.png` : `${name}.png`) });
  }
}

/** Puts files into a sandbox and starts a server of them there. */
export async function serveFiles(id, port, files, command = `python3 -m http.server ${port}`) {
  const dir = await mkdtemp(join(tmpdir(), "dwfiles."));
  try {
    for (const [name, text] of Object.entries(files)) {
      await writeFile(join(dir, name), text);
      await drowse("cp", join(dir, name), `${id}:/tmp/served/${name}`);
    }
  } finally {
    await rm(dir, { recursive: true });
  }
  await drowse("exec", id, "--", "sh", "-c", `cd /tmp/served && setsid ${command} >/dev/null 2>&1 </dev/null &`);
}
