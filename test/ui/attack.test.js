import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { api, create, drowse, serveFiles, signedIn, start, stop, url } from "./world.js";

before(start);
after(stop);

// A page of a sandbox, let in by a preview link by path, has the origin of the
// dashboard. This one tries what it can to read a page of it, or to change something.
const evil = (id, key) => `<!doctype html><button id=go>go</button><script>
const found = {};
const leak = (name, text) => { found[name] = /data-token="[^"]/.test(text) || text.includes("victim's own") ? "LEAK " + text.slice(0, 300) : "nothing"; };
const attempt = async (name, f) => { try { leak(name, String(await f())); } catch (e) { found[name] = "nothing"; } };
const page = (f) => f.contentDocument ? f.contentDocument.documentElement.outerHTML : "";
const later = (ms, f) => new Promise((ok) => setTimeout(() => ok(f()), ms));
const add = (kind, more) => document.body.appendChild(Object.assign(document.createElement(kind), more));
document.getElementById("go").onclick = async () => {
  const w = window.open("/ui/");
  window.open("/ui/sandboxes/${id}", "named");
  await attempt("fetch", async () => (await fetch("/ui/")).text());
  await attempt("fetch with a token", async () => (await fetch("/ui/", { headers: { "X-Drowse-Token": "guess" } })).text());
  await attempt("cache", async () => (await fetch("/ui/", { cache: "only-if-cached", mode: "same-origin" })).text());
  await attempt("XMLHttpRequest", () => new Promise((ok, bad) => { const x = new XMLHttpRequest(); x.open("GET", "/ui/sandboxes/${id}"); x.onload = () => ok(x.responseText); x.onerror = bad; x.send(); }));
  await attempt("post", async () => (await fetch("/ui/sandboxes/${id}/pause", { method: "POST", body: new URLSearchParams({}) })).text());
  await attempt("events", async () => (await fetch("/ui/events")).status === 200 ? 'data-token="x"' : "");
  await attempt("frame", () => { const f = add("iframe", { src: "/ui/" }); return later(1500, () => page(f)); });
  await attempt("object", () => { const f = add("object", { data: "/ui/" }); return later(1000, () => page(f)); });
  await attempt("form in a frame", () => { const f = add("iframe", { name: "target" }); add("form", { method: "post", target: "target", action: "/ui/sandboxes/${id}/pause" }).submit(); return later(1500, () => page(f)); });
  await attempt("service worker", async () => { await navigator.serviceWorker.register("sw.js", { scope: "/ui/" }); return 'data-token="x"'; });
  await attempt("cookie", () => /drowse_ui/.test(document.cookie) ? 'data-token="x"' : "");
  await attempt("cookie of another", () => { document.cookie = "drowse_ui=mine; path=/ui"; return ""; });
  await attempt("cookie on a longer path", () => { document.cookie = "drowse_ui=mine; path=/ui/"; document.cookie = "drowse_ui=mine; path=/ui/sandboxes"; return ""; });
  await attempt("sign in another", async () => (await fetch("/ui/sign-in", { method: "POST", body: new URLSearchParams({ key: "${key}" }) })).status === 403 ? "" : 'data-token="x"');
  await attempt("form to sign in", async () => /name="token" value="[^"]/.test(await (await fetch("/ui/link")).text()) ? 'data-token="x"' : "");
  await attempt("opened window", () => w.document.documentElement.outerHTML);
  await attempt("opened and named window", () => window.open("", "named").document.documentElement.outerHTML);
  document.title = JSON.stringify(found);
};
</script>`;

test("a hostile page with the origin of the dashboard reads and changes nothing", async () => {
  const sb = await create({ metadata: { name: "victim's own" } });
  const mine = await api("POST", "/v1/keys", { name: "an attacker", role: "own" });
  await serveFiles(sb.id, 8000, { "index.html": evil(sb.id, mine.key), "sw.js": "" });
  const link = (await api("POST", `/v1/sandboxes/${sb.id}/previews`, { port: 8000 })).url;
  assert.ok(link.startsWith(url + "/s/"), "the link goes by path, so that the origin is the dashboard's");
  const { page, context } = await signedIn();
  const bad = await context.newPage();
  await bad.goto(link);
  await bad.locator("#go").click();
  await bad.waitForFunction(() => document.title.startsWith("{"), undefined, { timeout: 60_000 });
  assert.equal(await bad.evaluate(() => self.origin), url, "the page has the dashboard's origin, or it proves nothing");
  const found = JSON.parse(await bad.title());
  assert.equal(Object.keys(found).length, 17);
  for (const [what, got] of Object.entries(found)) assert.equal(got, "nothing", what);
  assert.equal((await api("GET", `/v1/sandboxes/${sb.id}`)).state, "running");
  const cookies = (await context.cookies(url + "/ui/")).filter((c) => c.name === "drowse_ui" && c.path === "/ui");
  assert.equal(cookies.length, 1);
  assert.notEqual(cookies[0].value, "mine", "a script cannot replace the session's cookie");
  await page.reload();
  await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  assert.match(await page.locator("header").innerText(), /admin/, "the browser works in its own name");
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
});

const echo = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(self.headers).encode())
http.server.HTTPServer(("", 8000), H).serve_forever()
`;

test("no sandbox gets the cookie, by path or by host name", async () => {
  const sb = await create();
  await serveFiles(sb.id, 8000, { "echo.py": echo }, "python3 echo.py");
  const { context } = await signedIn();
  const [cookie] = await context.cookies();
  const port = new URL(url).port;
  const page = await context.newPage();
  for (const address of [`${url}/s/${sb.id}/8000/ui/`, `http://8000-${sb.id}.localhost:${port}/ui/`]) {
    await page.goto(address);
    const seen = await page.locator("body").innerText();
    assert.match(seen, /user-agent/i, address);
    assert.ok(!seen.includes(cookie.value) && !/drowse_ui/i.test(seen), `${address}: ${seen}`);
  }
  // And a client that sends it all the same.
  const resp = await fetch(`${url}/s/${sb.id}/8000/`, { headers: { Cookie: `a=1; drowse_ui=${cookie.value}; __Secure-drowse_ui=x; b=2` } });
  const seen = await resp.text();
  assert.ok(!seen.includes("drowse_ui") && !seen.includes(cookie.value), seen);
  assert.match(seen, /a=1; b=2/);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
});

test("hostile names and logs are text", async () => {
  const hostile = `"><script>document.title='OWNED'</script><img src=x onerror="document.title='OWNED'"><svg onload="document.title='OWNED'">`;
  const sb = await create({ metadata: { name: hostile, [hostile]: hostile } });
  await drowse("exec", sb.id, "--", "true", hostile); // a command's line is in the log
  const { page, problems } = await signedIn();
  for (const path of ["/ui/", `/ui/sandboxes/${sb.id}`, `/ui/sandboxes/${sb.id}/log`]) {
    await page.goto(url + path);
    await page.getByText("document.title").first().waitFor();
    if (path.endsWith("/log")) await page.locator(".log .text", { hasText: "document.title" }).first().waitFor();
    await page.waitForTimeout(300);
    assert.doesNotMatch(await page.title(), /^OWNED/);
    assert.equal(await page.locator("main img, main svg[onload]").count(), 0);
  }
  assert.deepEqual(problems, []);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
});
