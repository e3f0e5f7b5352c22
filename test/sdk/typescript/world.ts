// What the cases share. They run against the server that DROWSE_URL names.
import assert from "node:assert/strict";
import { type Socket, connect, createServer } from "node:net";
import { after } from "node:test";
import { Client, Sandbox } from "drowse";

export const client = new Client();

/** A sandbox of a case's own, which traffic wakes. */
export const make = (): Promise<Sandbox> => Sandbox.create({ idleTimeoutSeconds: 3600, onIdle: "pause", autoResume: true }, { client });

let one: Promise<Sandbox> | undefined;
/** A sandbox that no case pauses or ends. */
export const shared = (): Promise<Sandbox> => (one ??= Sandbox.create({}, { client }));
after(async () => (await one)?.kill());

/** The error of a class that something fails with. */
export async function fails<E extends Error>(kind: abstract new (...args: never[]) => E, doing: Promise<unknown>): Promise<E> {
  try {
    await doing;
  } catch (e) {
    assert(e instanceof kind, `${kind.name} was expected: ${String(e)}`);
    return e;
  }
  return assert.fail(`${kind.name} was expected`);
}

/**
 * Stands between a client and the server, and breaks off when it is told to. `lose` is how many
 * answers it swallows, once a request has gone through.
 */
export async function relay(options: { lose?: number; prefix?: string } = {}) {
  let lose = options.lose ?? 0;
  const heads: string[] = [];
  const open = new Set<Socket>();
  const to = new URL(process.env["DROWSE_URL"]!);
  const server = createServer((near) => {
    const far = connect(Number(to.port), to.hostname);
    const lost = lose-- > 0;
    for (const s of [near, far]) {
      open.add(s);
      s.on("error", () => {});
      s.on("close", () => (near.destroy(), far.destroy()));
    }
    near.on("data", (data) => {
      if (data.includes(" HTTP/1.1\r\n")) {
        heads.push(data.toString("latin1"));
        if (options.prefix) data = Buffer.from(data.toString("latin1").replace(` ${options.prefix}/`, " /"), "latin1");
      }
      far.write(data);
    });
    far.on("data", (data) => (lost ? near.destroy() : near.write(data)));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  assert(address && typeof address === "object");
  const cut = (): void => open.forEach((s) => s.destroy());
  return {
    url: `http://127.0.0.1:${address.port}`,
    heads,
    cut,
    [Symbol.dispose]() {
      server.close();
      cut();
    },
  };
}
