// The whole surface, against real sandboxes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  CommandError,
  CommandTimeoutError,
  ConflictError,
  InvalidRequestError,
  NotFoundError,
  NotRunningError,
  Sandbox,
  SandboxEndedError,
  SandboxInterruptedError,
  UnavailableError,
  version,
} from "drowse";
import { client, fails, make, shared } from "./world.js";

test("commands", async () => {
  const { commands } = await shared();
  const { stdout, stderr, exitCode, ok } = await commands.run("echo out; echo err >&2; exit 3");
  assert.deepEqual({ stdout, stderr, exitCode, ok }, { stdout: "out\n", stderr: "err\n", exitCode: 3, ok: false });
  const failed = await fails(CommandError, commands.run("echo why >&2; exit 3", { check: true }));
  assert.equal(failed.result.exitCode, 3);
  assert.match(failed.message, /why/);
  assert.equal((await commands.run(["printenv", "A"], { env: { A: "b c" }, cwd: "/" })).stdout, "b c\n");
  assert.equal((await commands.run("id -un; pwd", { user: "root", cwd: "/tmp", check: true })).stdout, "root\n/tmp\n");
  assert.equal((await commands.run("kill -9 $$")).status, "signal: killed");
});

test("input and output", async () => {
  const { commands } = await shared();
  const text = "größe 眠る 💤\n".repeat(40_000);
  assert.equal((await commands.run("cat", { stdin: text, check: true })).stdout, text);
  assert((await commands.run(["true"], { stdin: new Uint8Array(5_000_000) })).ok, "a command that reads nothing");
  const pieces: string[] = [];
  const onStdout = (piece: string): void => void pieces.push(piece);
  await commands.run(`for b in 303 237; do printf "\\\\$b"; sleep 0.1; done`, { onStdout });
  assert.deepEqual(pieces, ["ß"]);
  const size = 24 << 20;
  const huge = await commands.run(`head -c ${size} /dev/zero`);
  assert.equal(huge.stdoutBytes.length, size);
  assert(huge.stdoutBytes.every((b) => b === 0));
});

test("processes", async () => {
  const { commands } = await shared();
  await using process = await commands.start("read line; echo got $line; sleep 1000", { stdin: true });
  assert((await commands.list()).some((p) => p.pid === process.pid));
  await process.send("it\n");
  for await (const piece of process) {
    assert.deepEqual([piece.stream, piece.text], ["stdout", "got it\n"]);
    break;
  }
  assert(await process.kill());
  assert.equal((await process.wait()).exitCode, -1);
  assert(!(await process.kill()));
  await fails(CommandTimeoutError, commands.run("sleep 1000", { timeoutSeconds: 0.5 }));
  await fails(NotFoundError, commands.attach(99_999));
  const stop = (): void => {
    throw new RangeError("stop");
  };
  await fails(RangeError, commands.run("echo on; exec -a unheard sleep 1000", { onStdout: stop }));
  const ending = new AbortController();
  const running = commands.run("echo on; exec -a aborted sleep 1000", { signal: ending.signal, onStdout: () => ending.abort(new RangeError("enough")) });
  assert.equal((await fails(RangeError, running)).message, "enough");
  assert.doesNotMatch((await commands.run("ps ax")).stdout, /unheard|aborted/);
});

test("a terminal", async () => {
  const { commands } = await shared();
  await using shell = await commands.start(["/bin/sh"], { terminal: { columns: 99, rows: 33 } });
  await shell.send("stty size\n");
  let text = "";
  for await (const piece of shell) {
    assert.equal(piece.stream, "terminal");
    if ((text += piece.text).includes("33 99")) break;
  }
  await shell.resize(101, 35);
  await shell.send("stty size; exit 4\n");
  const { exitCode, stdout } = await shell.wait();
  assert.equal(exitCode, 4);
  assert.match(stdout, /35 101/);
});

test("files", async () => {
  const { files } = await shared();
  const every = Buffer.from(Uint8Array.from({ length: 1 << 20 }, (_, i) => i));
  await files.write("/tmp/d/ä b/x.bin", every);
  assert(every.equals(await files.read("/tmp/d/ä b/x.bin")));
  await files.write("/tmp/d/blob", new Blob([every, every]));
  await files.write("/tmp/d/stream", new Blob([every]).stream());
  assert.equal((await files.stat("/tmp/d/blob")).size, 2 << 20);
  assert(every.equals(await files.read("/tmp/d/stream")));
  await files.write("/tmp/d/text", "größe");
  assert.equal(await files.readText("/tmp/d/text"), "größe");
  const names = (await files.list("/tmp/d")).map((f) => `${f.type} ${f.name}`).sort();
  assert.deepEqual(names, ["directory ä b", "file blob", "file stream", "file text"].sort());
  assert.equal((await files.list("/tmp/d", { depth: 2 })).length, 5);
  assert((await files.stat("/tmp/d/text")).modified instanceof Date);
  await files.makeDir("/tmp/d/new/er");
  await files.makeDir("/tmp/d/new/er");
  await fails(InvalidRequestError, files.makeDir("/tmp/d/text"));
  assert.equal((await files.rename("/tmp/d/text", "/tmp/d/new/er/text")).path, "/tmp/d/new/er/text");
  await files.write("/tmp/d/empty", "");
  assert.equal((await files.read("/tmp/d/empty")).length, 0);
  await files.remove("/tmp/d");
  await files.remove("/tmp/d");
  assert(!(await files.exists("/tmp/d")));
  assert.match((await fails(NotFoundError, files.read("/tmp/d/text"))).message, /does not exist/);
});

test("a life", async () => {
  await using sandbox = await make();
  await sandbox.commands.run("echo 1 >/dev/shm/a; sleep 1000 & echo $!", { check: true });
  const paused = await sandbox.pause();
  assert.deepEqual([paused.state, paused.checkpoint?.mode], ["paused", "memory"]);
  assert(!("token" in paused));
  const why = await sandbox.why();
  assert.deepEqual([why.state, why.next.waitsFor], ["paused", "traffic"]);
  const twice = await fails(ConflictError, sandbox.pause());
  assert.deepEqual([twice.code, twice.state], ["already_paused", "paused"]);
  assert.match(twice.message, /Next step/);
  const late = await fails(NotRunningError, sandbox.hold("too late"));
  assert.equal(late.state, "paused");
  assert((await sandbox.wake(300)).endAt);
  assert.equal((await sandbox.setTimeout(null)).endAt, null);
  await sandbox.pause();
  assert.equal((await sandbox.commands.run("cat /dev/shm/a; pgrep -c sleep")).stdout, "1\n1\n", "a command wakes it");
  const changed = await sandbox.change({ autoResume: false, metadata: { k: "ö ts" }, maxLifetimeSeconds: 3600 });
  assert.deepEqual([changed.settings.autoResume, changed.metadata, changed.settings.maxLifetimeSeconds], [false, { k: "ö ts" }, 3600]);
  await sandbox.pause();
  assert.equal((await fails(NotRunningError, sandbox.files.read("/etc/hostname"))).code, "not_resumable");
  {
    await using other = await Sandbox.connect(sandbox.id);
    assert.equal((await other.info()).state, "running");
  }
  assert.equal((await sandbox.info()).state, "running", "a handle that found a sandbox leaves it");
  assert.deepEqual((await Sandbox.list({ metadata: { k: "ö ts" } })).map((s) => s.id), [sandbox.id]);
});

test("a hold", async () => {
  await using sandbox = await make();
  const until = async (id: string): Promise<string> => (await sandbox.holds()).find((h) => h.id === id)?.until ?? "";
  {
    await using hold = await sandbox.hold("training", { seconds: 9 });
    const before = await until(hold.id);
    assert((await sandbox.why()).busy);
    while ((await until(hold.id)) === before) await sleep(200);
    assert((await until(hold.id)) > before, "it is renewed");
  }
  assert.deepEqual(await sandbox.holds(), []);
  assert.equal(await sandbox.holding("work", async () => (await sandbox.holds())[0]?.detail), "work");
  assert.deepEqual(await sandbox.holds(), []);
});

test("events", async () => {
  const sandbox = await make();
  const seen: string[] = [];
  const following = (async () => {
    for await (const event of sandbox.events()) seen.push(event.type);
  })();
  await sandbox.pause();
  const stream = sandbox.commands.run("true");
  await stream;
  await sandbox.kill();
  await following;
  assert.deepEqual(seen, ["created", "running", "pausing", "paused", "resuming", "resumed", "terminated"]);
  const past: string[] = [];
  for await (const event of sandbox.events({ follow: false })) past.push(event.type);
  assert.deepEqual(past, seen);
  const over = await fails(SandboxEndedError, sandbox.commands.run("true"));
  assert.deepEqual([over.reason, over.state], ["Killed", "terminated"]);
  assert.match((await fails(SandboxEndedError, Sandbox.get(sandbox.id))).message, /Killed/);
  assert.equal((await sandbox.info()).tombstone?.reason, "Killed");
  const ending = new AbortController();
  setTimeout(() => ending.abort(new RangeError("enough")), 200);
  await fails(RangeError, (async () => {
    for await (const _ of client.events({ after: "now", signal: ending.signal }));
  })());
});

test("a stream over a pause", async () => {
  await using sandbox = await make();
  const process = await sandbox.commands.start("for i in $(seq 10000); do echo $i; sleep 0.05; done");
  let seen = 0;
  const cut = await fails(SandboxInterruptedError, (async () => {
    for await (const _ of process) if (++seen === 3) await sandbox.pause();
  })());
  assert.deepEqual([cut.reason, cut.pid], ["the sandbox was put to sleep", process.pid]);
  await sandbox.wake();
  await using again = await sandbox.commands.attach(process.pid);
  for await (const piece of again) {
    assert(parseInt(piece.text) >= 3);
    break;
  }
  await again.terminate();
  assert.equal((await again.wait()).status, "signal: terminated");
  const echo = await sandbox.commands.start("while read -r _; do echo lost; done", { stdin: true });
  assert.equal(echo.missedBytes, 0);
  echo.close();
  let missed = 0;
  for (const end = Date.now() + 60_000; missed === 0 && Date.now() < end; ) {
    // That nobody listens any more shows when there is output.
    for (let n = 0; n < 5; n++) {
      await echo.send("\n");
      await new Promise((go) => setTimeout(go, 50));
    }
    const after = await sandbox.commands.attach(echo.pid);
    missed = after.missedBytes;
    after.close();
  }
  assert(missed > 0 && missed % "lost\n".length === 0);
  await echo.kill();
});

test("forks and snapshots", async () => {
  await using sandbox = await make();
  await sandbox.files.write("/tmp/who", "parent");
  const who = (s: Sandbox): Promise<string> => s.files.readText("/tmp/who");
  const [one, two] = await sandbox.fork(2);
  assert(one && two);
  await one.files.write("/tmp/who", "one");
  assert.deepEqual(await Promise.all([sandbox, one, two].map(who)), ["parent", "one", "parent"]);
  await Promise.all([one.kill(), two.kill()]);
  const name = `sdk-${sandbox.id}`;
  const snapshot = await sandbox.snapshot(name, { expiresInSeconds: 3600 });
  assert.deepEqual((await sandbox.snapshots()).map((s) => s.id), [snapshot.id]);
  assert((await client.snapshots.change(name, { pinned: true })).pinned);
  await sandbox.files.write("/tmp/who", "later");
  assert(await sandbox.restore(name));
  assert.equal(await who(sandbox), "parent");
  await sandbox.restore(undefined, { discard: true });
  assert.equal(await who(sandbox), "later");
  {
    await using third = await Sandbox.create({ snapshot: name });
    assert.equal(await who(third), "parent");
  }
  await client.snapshots.remove(name);
  await fails(NotFoundError, client.snapshots.get(name));
});

test("services", async () => {
  await using sandbox = await make();
  await sandbox.services.set({ name: "web", command: ["python3", "-m", "http.server", "8000"], port: 8000 });
  assert.match(await (await sandbox.request(8000, "/")).text(), /Directory listing/);
  assert.equal((await sandbox.request(8000, "/nothing")).status, 404, "an answer like any other");
  assert.equal((await fails(UnavailableError, sandbox.request(8001))).code, "port_closed");
  assert.equal((await sandbox.services.get("web")).status?.state, "ready");
  await sandbox.pause();
  assert.equal((await sandbox.services.list())[0]?.status, null);
  await sandbox.wake();
  await sandbox.services.restart("web");
  assert((await sandbox.services.log("web", { lines: 50 })).some((line) => line.text.includes("GET /")));
  const preview = await sandbox.preview(8000, { expiresInSeconds: 60 });
  assert(preview.url);
  await sandbox.revokePreview(preview.id);
  assert.deepEqual(await sandbox.previews(), []);
  await sandbox.services.remove("web");
  assert.deepEqual(await sandbox.services.list(), []);
});

test("secrets", async () => {
  const name = "sdk-test-ts";
  const secret = await client.secrets.set(name, { value: "v1", hosts: ["api.example.com"], headers: { Authorization: "Bearer {}" } });
  assert.deepEqual([secret.env, secret.version], ["SDK_TEST_TS", 1]);
  assert.equal((await client.secrets.rotate(name, "v2")).version, 2);
  {
    await using sandbox = await Sandbox.create({ secrets: [name] });
    const value = (await sandbox.commands.run("printenv SDK_TEST_TS", { check: true })).stdout.trim();
    assert(value && !["v1", "v2"].includes(value));
  }
  await client.secrets.remove(name);
  assert((await client.secrets.list()).every((s) => s.name !== name));
});

test("names", async () => {
  {
    await using sandbox = await Sandbox.create({ name: "sdk-ts" });
    assert.equal((await Sandbox.named("sdk-ts")).id, sandbox.id);
    await fails(ConflictError, Sandbox.create({ name: "sdk-ts" }));
  }
  await fails(NotFoundError, Sandbox.named("sdk-ts"));
});

test("an end in mid-stream", async () => {
  await using sandbox = await Sandbox.create();
  const process = await sandbox.commands.start("echo on; exec sleep 1000");
  const cut = await fails(SandboxInterruptedError, (async () => {
    for await (const _ of process) await sandbox.kill();
  })());
  assert.match(cut.reason, /ended|killed/);
});

test("input that nobody reads", async () => {
  // What a command leaves behind may hold its input open.
  const { commands } = await shared();
  const { stdout } = await commands.run("sleep 1000 <&0 >/dev/null 2>&1 & echo $!", { stdin: new Uint8Array(5_000_000), check: true });
  await commands.run(`kill ${stdout}`, { check: true });
});

test("create once", async () => {
  const idempotencyKey = "sdk-once-ts";
  await using one = await Sandbox.create({ metadata: { a: "b" } }, { idempotencyKey });
  assert.equal((await Sandbox.create({ metadata: { a: "b" } }, { idempotencyKey })).id, one.id);
  assert.equal((await fails(ConflictError, Sandbox.create({}, { idempotencyKey }))).code, "idempotency_key_reused");
  assert.match(version, /^\d+\.\d+\.\d+$/);
});
