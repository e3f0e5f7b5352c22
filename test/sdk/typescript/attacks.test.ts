// What goes wrong between a program and its sandboxes.
import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";
import { inspect } from "node:util";
import {
  AuthenticationError,
  Client,
  ConnectionLostError,
  DrowseError,
  InvalidRequestError,
  NotFoundError,
  PermissionDeniedError,
  RequestTimeoutError,
  Sandbox,
  SandboxInterruptedError,
  UnreachableError,
} from "drowse";
import { client, fails, make, relay, shared } from "./world.js";

test("wrong keys", async () => {
  for (const apiKey of ["e2b_0000", "nonsense"]) {
    const refused = await fails(AuthenticationError, Sandbox.create({}, { client: new Client({ apiKey }) }));
    assert.equal(refused.status, 401);
    assert.match(refused.message, /Next step/);
  }
  for (const apiKey of ["a\nb", "schlüssel"]) assert.throws(() => new Client({ apiKey }), /DROWSE_API_KEY/);
  const made = await client.request("POST", "/v1/keys", { body: { name: "sdk ts", role: "read" } });
  await fails(PermissionDeniedError, Sandbox.create({}, { client: new Client({ apiKey: made.key + "\n" }) }));
  await client.request("DELETE", `/v1/keys/${made.id}`);
  assert(!inspect(client, { depth: 9 }).includes(process.env["DROWSE_API_KEY"]!));
});

test("no server", async () => {
  for (const url of ["127.0.0.1:3000", "ftp://host", "http://", "http://host:99999", "http://h?q"]) {
    assert.throws(() => new Client({ url }), DrowseError);
  }
  const gone = await relay();
  gone[Symbol.dispose]();
  assert.match((await fails(UnreachableError, Sandbox.create({}, { client: new Client({ url: gone.url }) }))).message, /drowse serve/);
  const silent = createServer(() => {}).listen(0, "127.0.0.1");
  await new Promise((resolve) => silent.once("listening", resolve));
  const url = `http://127.0.0.1:${(silent.address() as { port: number }).port}`;
  await fails(RequestTimeoutError, new Client({ url, timeoutSeconds: 0.3, retries: 1 }).health());
  await fails(RangeError, new Client({ url }).request("GET", "/health", { signal: AbortSignal.abort(new RangeError("enough")) }));
  silent.close();
});

test("refused", async () => {
  const invalid = await fails(InvalidRequestError, Sandbox.create({ timeoutSeconds: -1 }));
  assert(invalid.code);
  await fails(NotFoundError, Sandbox.create({ template: "no-such-template" }));
  for (const id of ["../keys", "", "A b", "i".repeat(300)]) await fails(DrowseError, Sandbox.get(id));
  for (const name of ["..", "", "."]) await fails(DrowseError, client.secrets.remove(name));
  await fails(NotFoundError, client.snapshots.get("../../v1/keys"));
});

test("an answer that is lost makes one sandbox", async () => {
  using lossy = await relay({ lose: 2 });
  await using sandbox = await Sandbox.create({ metadata: { lost: "answer ts" } }, { client: new Client({ url: lossy.url }) });
  assert.deepEqual((await Sandbox.list({ metadata: { lost: "answer ts" } })).map((s) => s.id), [sandbox.id]);
  const creates = lossy.heads.filter((h) => h.startsWith("POST /v1/sandboxes "));
  assert.equal(creates.length, 3);
  assert.equal(new Set(creates.map((h) => /idempotency-key: (.*)\r\n/i.exec(h)?.[1])).size, 1);
  using again = await relay({ lose: 1 });
  await fails(ConnectionLostError, new Client({ url: again.url }).request("POST", "/v1/keys", { body: {} }));
});

test("the server goes in mid-stream", async () => {
  const sandbox = await make();
  using through = await relay();
  const far = await Sandbox.get(sandbox.id, { client: new Client({ url: through.url }) });
  const process = await far.commands.start("echo on; exec sleep 1000");
  const cut = await fails(SandboxInterruptedError, (async () => {
    for await (const _ of process) through.cut();
  })());
  assert.equal(cut.pid, process.pid);
  assert((await sandbox.commands.list()).some((p) => p.pid === process.pid), "the command runs on");
  await sandbox.files.write("/tmp/large", Buffer.alloc(64 << 20));
  await fails(SandboxInterruptedError, (async () => {
    for await (const _ of far.files.chunks("/tmp/large")) through.cut();
  })());
  const seen: string[] = [];
  const following = (async () => {
    for await (const event of far.events()) {
      seen.push(event.type);
      if (event.type === "running") through.cut();
    }
  })();
  await sandbox.pause();
  await sandbox.wake();
  await sandbox.kill();
  await following;
  assert.deepEqual(seen, ["created", "running", "pausing", "paused", "resuming", "resumed", "terminated"]);
});

test("a base path", async () => {
  using below = await relay({ prefix: "/some/where" });
  await using sandbox = await Sandbox.create({}, { client: new Client({ url: below.url + "/some/where/" }) });
  assert.equal((await sandbox.commands.run("echo there")).stdout, "there\n");
  await sandbox.files.write("/tmp/x", "y");
  assert.equal(await sandbox.files.readText("/tmp/x"), "y");
  assert(below.heads.length >= 4 && below.heads.every((h) => h.split(" ")[1]!.startsWith("/some/where/")));
});

test("a name that is no address", async () => {
  const asked: { url: string; headers: Headers }[] = [];
  const answers = async (url: string | URL | Request, init?: RequestInit): Promise<Response> => {
    asked.push({ url: String(url), headers: new Headers(init?.headers) });
    return asked.length === 1
      ? Response.json({ id: "iabc", template: "base", token: "inside" })
      : Response.json({ code: 404, message: "path does not exist" }, { status: 404 });
  };
  const named = new Client({ url: "https://drowse.example.com/base", apiKey: "e2b_00", fetch: answers });
  const sandbox = await Sandbox.get("iabc", { client: named });
  await fails(NotFoundError, sandbox.files.read("/x"));
  assert.equal(asked[1]!.url, "https://drowse.example.com/base/s/iabc/49983/files?path=%2Fx");
  assert.equal(asked[1]!.headers.get("X-Access-Token"), "inside");
  assert(!asked[1]!.headers.has("X-API-Key"), "the key stays outside");
});

test("many at once", async () => {
  const sandbox = await shared();
  const out = await Promise.all(Array.from({ length: 48 }, (_, n) => sandbox.commands.run(`sleep 0.2; echo ${n}`)));
  assert.deepEqual(out.map((r) => r.stdout), Array.from({ length: 48 }, (_, n) => `${n}\n`));
});

test("frames and events, however they are cut up", async () => {
  // By a server that sends a byte at a time, and characters that some take for the ends of lines.
  const text = JSON.stringify({ id: 8, type: "terminated", detail: "a\x85b\u2028c" });
  const stream = new TextEncoder().encode(`: hi\n\nid: 7\n\nid: 8\r\ndata: ${text}\r\n\r\n`);
  const piecewise = (): ReadableStream<Uint8Array> =>
    new ReadableStream({
      start(to) {
        for (const b of stream) to.enqueue(Uint8Array.of(b));
        to.close();
      },
    });
  const answers = async (url: string | URL | Request): Promise<Response> =>
    String(url).includes("/events") ? new Response(piecewise()) : Response.json({ id: "iabc", template: "base" });
  const sandbox = await Sandbox.get("iabc", { client: new Client({ url: "http://x.test", apiKey: "k", fetch: answers }) });
  for await (const event of sandbox.events()) assert.equal(event.detail, "a\x85b\u2028c");
});
