// A connection to one server.

import { Secrets, Snapshots } from "./admin.js";
import { type Config, configOf } from "./config.js";
import {
  APIError,
  ConnectionLostError,
  DrowseError,
  RequestTimeoutError,
  UnavailableError,
  UnreachableError,
  errorOf,
} from "./errors.js";
import type { Event } from "./models.js";
import { version } from "./version.js";
import { EventLines, type JSONValue } from "./wire.js";

export interface ClientOptions {
  /** The server; DROWSE_URL, if not said. */
  url?: string | undefined;
  /** The API key; DROWSE_API_KEY, if not said. */
  apiKey?: string | undefined;
  /** Where requests into sandboxes go, if not to url. */
  sandboxURL?: string | undefined;
  /** How long one answer may take (default: 120). Commands and files have limits of their own. */
  timeoutSeconds?: number | undefined;
  /** How often a request is made again that could not be made, or that does no harm twice (default: 2). */
  retries?: number | undefined;
  /** What makes the requests; the global fetch, if not said. */
  fetch?: typeof fetch | undefined;
}

export interface EventsOptions {
  /** The id of an event to go on from, or "now". */
  after?: number | "now" | undefined;
  /** Whether to go on with what happens (default: true). */
  follow?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** What a request may carry. */
export type Content = NonNullable<RequestInit["body"]>;

/** What a request is made of. */
export interface Asked {
  method: string;
  url: string;
  headers: Record<string, string>;
  content?: Content | undefined;
  query?: Record<string, string> | URLSearchParams | undefined;
  /** It does no harm twice. */
  again: boolean;
  timeoutSeconds?: number | undefined;
  /** A server in a sandbox answers, whatever it likes. */
  foreign?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** How long a stream may be silent before it counts as broken. The server says something every
 * 15 seconds, and the agent every 50. */
const silence = 110_000;

/** An answer whose body has not been read. */
export class Answer {
  #controller: AbortController;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    readonly response: Response,
    controller: AbortController,
  ) {
    this.#controller = controller;
  }

  /** The body as it comes. Leaving it gives it up; who wants to go on later calls next itself. */
  async *chunks(): AsyncGenerator<Uint8Array, void, undefined> {
    if (!this.response.body) return;
    const reader = this.response.body.getReader();
    try {
      for (;;) {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#controller.abort(new Error("the stream was silent")), silence);
        this.#timer.unref(); // what is read keeps the program alive, not that it may be silent
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
      }
    } finally {
      this.close();
    }
  }

  async bytes(): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const part of this.chunks()) parts.push(part);
    return Buffer.concat(parts);
  }

  /** Gives up the rest of the body. */
  close(): void {
    clearTimeout(this.#timer);
    this.#controller.abort(closed);
  }
}

/** Why a body ends that was given up. */
export const closed = new DrowseError("the stream was closed");

/**
 * A connection to one server. What is not given is taken from the environment: DROWSE_URL and
 * DROWSE_API_KEY, as the command line has them.
 */
export class Client {
  readonly url: string;
  /** Checkpoints that sandboxes can start from. */
  readonly snapshots: Snapshots;
  /** Values that sandboxes use without having them. */
  readonly secrets: Secrets;

  readonly #config: Config;
  readonly #timeout: number;
  readonly #retries: number;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions = {}) {
    this.#config = configOf(options.url, options.apiKey, options.sandboxURL);
    this.#timeout = options.timeoutSeconds ?? 120;
    this.#retries = options.retries ?? 2;
    this.#fetch = options.fetch ?? fetch;
    this.url = this.#config.url;
    this.snapshots = new Snapshots(this);
    this.secrets = new Secrets(this);
  }

  /** Returns if a server answers and says that it is well. */
  async health(): Promise<void> {
    await this.request("GET", "/health");
  }

  /** Makes any request to the API, and returns the JSON of the answer. */
  async request(
    method: string,
    path: string,
    options: {
      body?: unknown;
      query?: Record<string, string> | URLSearchParams | undefined;
      headers?: Record<string, string> | undefined;
      /** Whether it does no harm twice (default: for all but POST). */
      again?: boolean | undefined;
      signal?: AbortSignal | undefined;
    } = {},
  ): Promise<JSONValue> {
    const headers: Record<string, string> = { "X-API-Key": this.#config.apiKey, Accept: "application/json", ...options.headers };
    let content: string | undefined;
    if (options.body !== undefined) {
      headers["Content-Type"] = "application/json";
      content = JSON.stringify(options.body);
    }
    const again = options.again ?? method !== "POST";
    const { query, signal } = options;
    return this._json({ method, url: this.url + path, headers, content, query, again, signal });
  }

  /**
   * What has happened to all sandboxes, and then what happens, each once and in order. A connection
   * that breaks is taken up again where it broke off.
   */
  events(options: EventsOptions = {}): AsyncGenerator<Event, void, undefined> {
    return this._events("/v1/events", options);
  }

  /** @internal */
  async *_events(path: string, options: EventsOptions): AsyncGenerator<Event, void, undefined> {
    let after = options.after;
    const { signal } = options;
    const query = (): Record<string, string> => (after === undefined ? {} : { after: String(after) });
    if (options.follow === false) {
      for (;;) {
        const page = await this.request("GET", path, { query: query(), signal });
        yield* page.events as Event[];
        if (!page.events.length) return;
        after = page.next as number;
      }
    }
    const headers = { "X-API-Key": this.#config.apiKey, Accept: "text/event-stream" };
    for (let reached = false, failures = 0; ; failures++) {
      try {
        const asked = { method: "GET", url: this.url + path, headers, query: query(), again: true, signal };
        const answer = await this._open(asked);
        reached = true;
        const lines = new EventLines();
        const chunks = answer.chunks();
        try {
          for (;;) {
            const { done, value } = await broken(chunks.next(), signal);
            if (done) break;
            for (const { id, data } of lines.feed(value)) {
              failures = 0;
              if (id !== undefined) after = id;
              if (data) yield JSON.parse(data) as Event;
            }
          }
        } finally {
          answer.close();
        }
      } catch (e) {
        const passing = e instanceof UnreachableError || e instanceof ConnectionLostError || e instanceof UnavailableError;
        if (!reached || !passing) throw e;
      }
      await sleep(Math.min(30_000, 500 * 2 ** Math.min(failures, 10)), signal);
    }
  }

  /** @internal The configuration, for what is made of a client. */
  get _config(): Config {
    return this.#config;
  }

  /** @internal */
  async _json(asked: Asked): Promise<JSONValue> {
    const answer = await this._open(asked);
    const timer = setTimeout(() => answer.close(), this.#milliseconds(asked));
    try {
      const text = new TextDecoder().decode(await broken(answer.bytes(), asked.signal));
      if (!text) return undefined;
      try {
        return JSON.parse(text);
      } catch {
        throw new DrowseError(`the answer of ${asked.url} is no JSON: is this the URL of a drowse server?`);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #milliseconds(asked: Asked): number {
    return (asked.timeoutSeconds ?? this.#timeout) * 1000;
  }

  /** @internal Makes a request, again where that is right. An answer that refuses is an error; that
   * of a foreign server only if it comes from the proxy in front of it. */
  async _open(asked: Asked): Promise<Answer> {
    const query = asked.query ? String(new URLSearchParams(asked.query)) : "";
    const url = asked.url + (query ? `?${query}` : "");
    const base = url.startsWith(this.#config.dataURL) ? this.#config.dataURL : this.url;
    for (let attempt = 1; ; attempt++) {
      const last = attempt > this.#retries;
      let wait = 200 * 2 ** attempt * (0.5 + Math.random() / 2);
      const controller = new AbortController();
      const signal = asked.signal ? AbortSignal.any([controller.signal, asked.signal]) : controller.signal;
      const timer = setTimeout(() => controller.abort(late), this.#milliseconds(asked));
      let answer: Answer | undefined;
      try {
        asked.signal?.throwIfAborted();
        const init: RequestInit = {
          method: asked.method,
          headers: { "User-Agent": `drowse-js/${version}`, ...asked.headers },
          redirect: "manual",
          signal,
        };
        if (asked.content !== undefined) {
          init.body = asked.content;
          init.duplex = "half";
        }
        answer = new Answer(await this.#fetch(url, init), controller);
      } catch (e) {
        if (asked.signal?.aborted) throw asked.signal.reason;
        if (!(e instanceof TypeError) && e !== late) throw e;
        const words = wordsOf(e);
        if (neverSent(e)) {
          if (last || asked.content instanceof ReadableStream) {
            throw new UnreachableError(`no server answers at ${base}: ${words}; start it with drowse serve, or set DROWSE_URL`, { cause: e });
          }
        } else if (last || !asked.again) {
          const seconds = this.#milliseconds(asked) / 1000;
          if (e === late) throw new RequestTimeoutError(`${asked.method} ${base}: no answer within ${seconds} s; it may have been carried out`);
          throw new ConnectionLostError(`the connection to ${base} broke before an answer: ${words}`, { cause: e });
        }
      } finally {
        clearTimeout(timer);
      }
      if (answer) {
        const { status } = answer.response;
        if (answer.response.ok) return answer;
        const body = await broken(answer.bytes(), asked.signal);
        const failure = errorOf(status, new TextDecoder().decode(body));
        if (asked.foreign && !(status === 502 && failure instanceof APIError && failure.context["sandbox"])) {
          return new Answer(new Response(body as Content, { status, headers: answer.response.headers }), new AbortController());
        }
        const told = answer.response.headers.get("Retry-After") ?? "";
        const busy = status === 429 && told !== "";
        const passing = asked.again && [502, 503, 504].includes(status) && failure instanceof UnavailableError;
        if (last || !(busy || passing) || asked.content instanceof ReadableStream) throw failure;
        if (/^\d+$/.test(told)) wait = Math.max(wait, Math.min(Number(told), 10) * 1000);
      }
      await sleep(wait, asked.signal);
    }
  }
}

const late = new Error("late");

/** The result of reading a body, with a failure as one of ours. */
export async function broken<T>(reading: Promise<T>, signal?: AbortSignal, make?: (e: unknown) => DrowseError): Promise<T> {
  try {
    return await reading;
  } catch (e) {
    if (signal?.aborted) throw signal.reason;
    if (e instanceof DrowseError && e !== closed) throw e;
    throw make?.(e) ?? new ConnectionLostError(`the connection to the server broke: ${wordsOf(e)}`, { cause: e });
  }
}

function codesOf(e: unknown): string[] {
  const codes: string[] = [];
  for (let at: unknown = e; at instanceof Error; at = at.cause) {
    const code = (at as NodeJS.ErrnoException).code;
    if (typeof code === "string") codes.push(code);
    if (at instanceof AggregateError) for (const one of at.errors) codes.push(...codesOf(one));
  }
  return codes;
}

/** Whether no connection was made, so that nothing was sent. */
function neverSent(e: unknown): boolean {
  const dial = /^(ECONNREFUSED|ENOTFOUND|EAI_|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|ERR_TLS|ERR_SSL|CERT_|UNABLE_TO_|DEPTH_ZERO|SELF_SIGNED|HOSTNAME_)/;
  return codesOf(e).some((code) => dial.test(code));
}

function wordsOf(e: unknown): string {
  if (!(e instanceof Error)) return String(e);
  return e.cause instanceof Error ? wordsOf(e.cause) : e.message || (e as NodeJS.ErrnoException).code || e.name;
}

export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
