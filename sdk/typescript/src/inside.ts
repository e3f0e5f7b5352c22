// Requests into one sandbox.

import { type Answer, type Asked, type Client, broken } from "./client.js";
import { agentPort, inside } from "./config.js";
import { SandboxInterruptedError, errorOfRPC } from "./errors.js";
import { Frames, type JSONValue, frame } from "./wire.js";

type Call = Partial<Pick<Asked, "content" | "query" | "again" | "timeoutSeconds" | "signal">> & {
  headers?: Record<string, string> | undefined;
  port?: number | undefined;
  user?: string | undefined;
};

/** The way to the agent of a sandbox, and to the servers in it. */
export class Inside {
  constructor(
    readonly client: Client,
    readonly sandbox: string,
    readonly token: string,
    readonly traffic: string,
  ) {}

  /** A request to a port. The key of the API does not go with it. */
  #asked(method: string, path: string, call: Call): Asked {
    const port = call.port ?? agentPort;
    const { url, headers } = inside(this.client._config, this.sandbox, port);
    if (this.traffic) headers["E2b-Traffic-Access-Token"] = this.traffic;
    if (port === agentPort) {
      // Compressing costs more than it saves this near.
      headers["Accept-Encoding"] = "identity";
      if (this.token) headers["X-Access-Token"] = this.token;
      // Says who runs it inside, and proves nothing.
      if (call.user) headers["Authorization"] = "Basic " + Buffer.from(`${call.user}:`).toString("base64");
    }
    return {
      ...call,
      method,
      url: url + path,
      headers: { ...headers, ...call.headers },
      again: call.again ?? false,
      foreign: port !== agentPort,
    };
  }

  async send(method: string, path: string, call: Call = {}): Promise<Answer> {
    return this.client._open(this.#asked(method, path, call));
  }

  /** Calls a method of the agent that answers once. */
  async call(method: string, message: unknown, call: Call = {}): Promise<JSONValue> {
    const headers = { "Content-Type": "application/json", "Connect-Protocol-Version": "1" };
    const content = JSON.stringify(message);
    return this.client._json(this.#asked("POST", "/" + method, { again: true, ...call, headers, content }));
  }

  /** Opens a stream of the agent. */
  async open(
    method: string,
    message: unknown,
    call: { user?: string | undefined; timeoutSeconds?: number | undefined; signal?: AbortSignal | undefined },
  ): Promise<Answer> {
    const headers: Record<string, string> = {
      "Content-Type": "application/connect+json",
      "Connect-Protocol-Version": "1",
      "Keepalive-Ping-Interval": "50",
    };
    if (call.timeoutSeconds !== undefined) {
      headers["Connect-Timeout-Ms"] = String(Math.max(1, Math.round(call.timeoutSeconds * 1000)));
    }
    return this.send("POST", "/" + method, { content: frame(message), headers, user: call.user, signal: call.signal });
  }

  /** The messages of a stream. One that does not end as it should is an error. */
  async *messages(answer: Answer, pid: () => number | undefined, signal?: AbortSignal): AsyncGenerator<JSONValue, void, undefined> {
    const frames = new Frames();
    const chunks = answer.chunks();
    for (;;) {
      const lost = (e: unknown): SandboxInterruptedError =>
        new SandboxInterruptedError("the connection to the sandbox broke", pid(), { cause: e });
      const { done, value } = await broken(chunks.next(), signal, lost);
      if (done) throw new SandboxInterruptedError("the stream of the sandbox ended early", pid());
      for (const { end, message } of frames.feed(value)) {
        if (!end) yield message;
        else if (message.error) throw errorOfRPC(message.error, pid());
        else return;
      }
    }
  }
}
