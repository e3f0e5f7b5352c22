// A sandbox.

import { randomUUID } from "node:crypto";
import { Client, type Content, type EventsOptions } from "./client.js";
import { Commands } from "./commands.js";
import { below, sandboxPath } from "./config.js";
import { APIError, DrowseError, ForkError, NotFoundError, NotRunningError, refusal, refusalOf } from "./errors.js";
import { Files } from "./files.js";
import { Inside } from "./inside.js";
import type {
  ChangeOptions,
  CreateOptions,
  Event,
  Explanation,
  Hold as HoldInfo,
  Preview,
  PreviewOptions,
  SandboxInfo,
  Snapshot,
  SnapshotOptions,
} from "./models.js";
import { Services } from "./services.js";
import type { JSONValue } from "./wire.js";

export type Mode = "memory" | "filesystem";

export interface WithClient {
  /** The server; one by the environment, if not said. */
  client?: Client | undefined;
}

export interface ListOptions {
  state?: SandboxInfo["state"] | undefined;
  metadata?: Record<string, string> | undefined;
  template?: string | undefined;
  /** A name that this API key has given. */
  name?: string | undefined;
}

export interface PortRequest {
  method?: string | undefined;
  body?: Content | undefined;
  headers?: Record<string, string> | undefined;
  timeoutSeconds?: number | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * A sandbox: a handle that stays valid while the sandbox sleeps and wakes. `await using` kills the
 * sandbox that it has created at the end of the block, and leaves one that it has found.
 */
export class Sandbox {
  readonly id: string;
  /** What it was made from: its alias, or its id. */
  readonly template: string;
  readonly commands: Commands;
  readonly files: Files;
  readonly services: Services;

  readonly #client: Client;
  readonly #created: boolean;
  readonly #path: string;
  readonly #inside: Inside;

  private constructor(client: Client, answer: JSONValue, created: boolean) {
    this.id = answer.id;
    this.template = answer.alias ?? answer.template;
    this.#client = client;
    this.#created = created;
    this.#path = sandboxPath(this.id);
    this.#inside = new Inside(client, this.id, answer.token ?? "", answer.trafficToken ?? "");
    this.commands = new Commands(this.#inside);
    this.files = new Files(this.#inside);
    this.services = new Services(client, this.#path);
  }

  // Getting one

  /**
   * Makes a sandbox, which runs when this returns.
   *
   * A create whose answer is lost is made again, and still makes one sandbox. To have that over the
   * end of this process too, give an `idempotencyKey` of your own.
   */
  static async create(options: CreateOptions = {}, by: WithClient & { idempotencyKey?: string | undefined } = {}): Promise<Sandbox> {
    const client = by.client ?? new Client();
    const headers = { "Idempotency-Key": by.idempotencyKey ?? randomUUID() };
    const answer = await client.request("POST", "/v1/sandboxes", { body: options, headers, again: true });
    return Sandbox.#of(client, answer, true);
  }

  /** A handle to a sandbox that exists. It is left as it is, asleep or not. */
  static async get(sandbox: string, by: WithClient = {}): Promise<Sandbox> {
    const client = by.client ?? new Client();
    return Sandbox.#of(client, await client.request("GET", sandboxPath(sandbox)), false);
  }

  /** A handle to the sandbox that was given a name at create, by the same API key. It is left as it is. */
  static async named(name: string, by: WithClient = {}): Promise<Sandbox> {
    const client = by.client ?? new Client();
    const [found] = await Sandbox.list({ name, client });
    if (found) return Sandbox.get(found.id, { client });
    throw refusal({
      message: `this API key has no sandbox of the name ${JSON.stringify(name)}`,
      status: 404,
      code: "sandbox_not_found",
      remediation: "create one with this name, or look it up by id: with another key, the name says nothing",
    });
  }

  /** A handle to a sandbox that exists, which is woken if it sleeps. See wake. */
  static async connect(sandbox: string, by: WithClient & { timeoutSeconds?: number | undefined } = {}): Promise<Sandbox> {
    const client = by.client ?? new Client();
    const body = { timeoutSeconds: by.timeoutSeconds };
    return Sandbox.#of(client, await client.request("POST", sandboxPath(sandbox) + "/resume", { body, again: true }), false);
  }

  static #of(client: Client, answer: JSONValue, created: boolean): Sandbox {
    if (!answer.tombstone) return new Sandbox(client, answer, created);
    const { at, reason, detail, code, remediation } = answer.tombstone;
    throw refusal({
      message: `the sandbox ended at ${at}: ${reason}${detail ? ` (${detail})` : ""}`,
      status: 404,
      code: code || "sandbox_terminated",
      remediation,
      cause: reason,
      context: { sandbox: answer.id, state: "terminated", reason, endedAt: at },
    });
  }

  /** The sandboxes that have not ended, or those in a state, newest first. */
  static async list(options: ListOptions & WithClient = {}): Promise<SandboxInfo[]> {
    const client = options.client ?? new Client();
    const query = new URLSearchParams();
    if (options.state) query.set("state", options.state);
    if (options.template) query.set("template", options.template);
    if (options.name !== undefined) query.set("name", options.name);
    for (const [name, value] of Object.entries(options.metadata ?? {})) {
      if (name.includes("=")) throw new DrowseError(`the metadata key ${JSON.stringify(name)} has a =, and cannot be asked for`);
      query.append("metadata", `${name}=${value}`);
    }
    const found: SandboxInfo[] = [];
    for (;;) {
      const page = await client.request("GET", "/v1/sandboxes", { query });
      found.push(...page.sandboxes);
      if (!page.next) return found;
      query.set("after", page.next);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#created) return;
    await this.kill().catch((e: unknown) => {
      if (!(e instanceof NotFoundError)) throw e;
    });
  }

  // Its life

  /** What the server says of it, also after its end. It neither wakes it nor moves a deadline. */
  async info(): Promise<SandboxInfo> {
    return shown(await this.#client.request("GET", this.#path));
  }

  /** Why it is as it is, and what happens next: `(await why()).next.text` says it in words. */
  async why(): Promise<Explanation> {
    return this.#client.request("GET", this.#path + "/lifecycle");
  }

  /**
   * Puts it to sleep. It is asleep when this returns, with its memory, processes and files; with
   * mode filesystem, with its files alone. ConflictError: it sleeps already.
   */
  async pause(mode?: Mode): Promise<SandboxInfo> {
    return shown(await this.#client.request("POST", this.#path + "/pause", { body: { mode } }));
  }

  /** Wakes it if it sleeps. `timeoutSeconds` is how long it then runs at least; 0 is without end. */
  async wake(timeoutSeconds?: number): Promise<SandboxInfo> {
    return shown(await this.#client.request("POST", this.#path + "/resume", { body: { timeoutSeconds }, again: true }));
  }

  /** Ends it, running or asleep, and deletes what it held. */
  async kill(): Promise<void> {
    await this.#client.request("DELETE", this.#path);
  }

  /** Moves its deadline to so many seconds from now; null takes it away, and 0 is now. */
  async setTimeout(seconds: number | null): Promise<SandboxInfo> {
    const body = { timeoutSeconds: seconds === null ? "none" : seconds || "now" };
    return shown(await this.#client.request("POST", this.#path + "/timeout", { body, again: true }));
  }

  /** Changes its settings, running or asleep. */
  async change(change: ChangeOptions): Promise<SandboxInfo> {
    return shown(await this.#client.request("PATCH", this.#path, { body: change }));
  }

  /**
   * Keeps it awake until the hold is released, or at the end of the block of an `await using`. The
   * hold is renewed all the while. If this process dies, it ends after `seconds` (default: 60).
   */
  async hold(reason: string, options: { seconds?: number | undefined } = {}): Promise<Hold> {
    return Hold._open(this.#client, this.#path + "/holds", reason, options.seconds ?? 60);
  }

  /** Keeps it awake for as long as some work goes on, and returns what that returns. */
  async holding<T>(reason: string, work: () => Promise<T>, options: { seconds?: number | undefined } = {}): Promise<T> {
    const hold = await this.hold(reason, options);
    try {
      return await work();
    } finally {
      await hold.release();
    }
  }

  /** What keeps it awake, those that count first. */
  async holds(): Promise<HoldInfo[]> {
    return (await this.#client.request("GET", this.#path + "/holds")).holds;
  }

  /**
   * What has happened to it, and then what happens, each once and in order, until it ends. A
   * connection that breaks is taken up again where it broke off.
   */
  async *events(options: EventsOptions = {}): AsyncGenerator<Event, void, undefined> {
    for await (const event of this.#client._events(this.#path + "/events", options)) {
      yield event;
      if (event.type === "terminated") return;
    }
  }

  // Others like it

  /**
   * Starts sandboxes that go on from what this one is now: its memory, processes and files.
   * ForkError: some did not start.
   */
  async fork(count = 1, options: { timeoutSeconds?: number | undefined } = {}): Promise<Sandbox[]> {
    const answer = await this.#client.request("POST", this.#path + "/fork", { body: { count, ...options } });
    const children: Sandbox[] = [];
    const failed: APIError[] = [];
    for (const child of answer.children) {
      if (child.sandbox) children.push(new Sandbox(this.#client, child.sandbox, true));
      else failed.push(refusalOf(child.status ?? 500, child.error ?? {}));
    }
    if (failed.length) throw new ForkError(children, failed);
    return children;
  }

  /** Keeps what it is now: others can start from it, and it can go back to it. */
  async snapshot(name?: string, options: Omit<SnapshotOptions, "name"> = {}): Promise<Snapshot> {
    return this.#client.request("POST", this.#path + "/snapshots", { body: { name, ...options } });
  }

  /** Its snapshots, newest first. */
  async snapshots(): Promise<Snapshot[]> {
    return (await this.#client.request("GET", this.#path + "/snapshots")).snapshots;
  }

  /**
   * Takes it back to one of its snapshots, by id or name; without one, to what it was before the
   * last restore. Returns the id of the snapshot that keeps what it was, unless `discard`.
   */
  async restore(snapshot?: string, options: { mode?: Mode | undefined; discard?: boolean | undefined } = {}): Promise<string | null> {
    const body = snapshot === undefined ? { undo: true, ...options } : { snapshot, ...options };
    return (await this.#client.request("POST", this.#path + "/restore", { body })).undo;
  }

  // Its ports

  /** Asks a server in the sandbox, and returns what it answers, whatever the status. It wakes the
   * sandbox where traffic may. */
  async request(port: number, path = "/", options: PortRequest = {}): Promise<Response> {
    if (!path.startsWith("/")) throw new DrowseError(`the path ${JSON.stringify(path.slice(0, 100))} does not begin with /`);
    const { method = "GET", body, headers, timeoutSeconds, signal } = options;
    const call = { port, content: body, headers, timeoutSeconds, signal };
    return (await this.#inside.send(method, path, call)).response;
  }

  /** Makes a link to a port, for people who have no key. Its url is shown now and never again. */
  async preview(port: number, options: Omit<PreviewOptions, "port"> = {}): Promise<Preview> {
    return this.#client.request("POST", this.#path + "/previews", { body: { port, ...options } });
  }

  /** The links that are good, oldest first. */
  async previews(): Promise<Preview[]> {
    return (await this.#client.request("GET", this.#path + "/previews")).previews;
  }

  /** Makes a link worthless before its time. */
  async revokePreview(preview: string): Promise<void> {
    await this.#client.request("DELETE", below(this.#path + "/previews", preview));
  }
}

/** What there is to show of a sandbox: not its tokens. */
function shown(answer: JSONValue): SandboxInfo {
  const { token: _, trafficToken: __, ...info } = answer;
  return info as SandboxInfo;
}

/** Evidence of work in progress: while it is there, the sandbox is not idle. */
export class Hold {
  readonly id = "sdk-" + randomUUID().replaceAll("-", "");
  readonly #client: Client;
  readonly #path: string;
  readonly #seconds: number;
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<void> = Promise.resolve();

  private constructor(
    client: Client,
    path: string,
    readonly reason: string,
    seconds: number,
  ) {
    this.#client = client;
    this.#path = path;
    this.#seconds = seconds;
  }

  /** @internal */
  static async _open(client: Client, path: string, reason: string, seconds: number): Promise<Hold> {
    const hold = new Hold(client, path, reason, seconds);
    await hold.#renew();
    hold.#timer = setInterval(() => (hold.#renewing = hold.#keep()), (seconds * 1000) / 3);
    hold.#timer.unref();
    return hold;
  }

  async #renew(): Promise<void> {
    // With an id of its own it is the same hold however often it is asked for.
    const body = { id: this.id, reason: this.reason, seconds: this.#seconds };
    await this.#client.request("POST", this.#path, { body, again: true });
  }

  async #keep(): Promise<void> {
    try {
      await this.#renew();
    } catch (e) {
      // A sandbox that sleeps may wake again.
      if (e instanceof APIError && e.status < 500 && e.status !== 429 && !(e instanceof NotRunningError)) clearInterval(this.#timer);
    }
  }

  /** Ends it. */
  async release(): Promise<void> {
    clearInterval(this.#timer);
    await this.#renewing;
    try {
      await this.#client.request("DELETE", below(this.#path, this.id));
    } catch (e) {
      // The sandbox has ended, or the hold went with its sleep.
      if (!(e instanceof NotFoundError || e instanceof NotRunningError)) throw e;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}
