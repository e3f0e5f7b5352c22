// Commands in a sandbox.

import { randomUUID } from "node:crypto";
import { type Answer, closed } from "./client.js";
import {
  APIError,
  CommandError,
  DrowseError,
  NotFoundError,
  type Result,
  SandboxInterruptedError,
} from "./errors.js";
import type { Inside } from "./inside.js";
import type { JSONValue } from "./wire.js";

/** A piece of what a command prints. */
export interface Output {
  stream: "stdout" | "stderr" | "terminal";
  /** A character that is not complete yet is in the next piece. */
  text: string;
  data: Uint8Array;
}

/** A command that runs. */
export interface ProcessInfo {
  pid: number;
  command: string[];
  env: Record<string, string>;
  cwd: string | undefined;
}

export interface StartOptions {
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Whether it gets input, by `send`. */
  stdin?: boolean | undefined;
  /** A terminal to run it on. */
  terminal?: { columns: number; rows: number } | undefined;
  /** When it is killed, in seconds awake. */
  timeoutSeconds?: number | undefined;
  /** Gives up the stream of its output. The command runs on. */
  signal?: AbortSignal | undefined;
}

export interface RunOptions extends Omit<StartOptions, "stdin" | "terminal"> {
  /** What it reads. */
  stdin?: string | Uint8Array | undefined;
  /** Whether a code other than 0 is a CommandError. */
  check?: boolean | undefined;
  onStdout?: ((text: string) => void) | undefined;
  onStderr?: ((text: string) => void) | undefined;
  /** Kills the command. */
  signal?: AbortSignal | undefined;
}

const chunk = 64 << 10;

/** Commands in a sandbox. A command is a line for a shell, or a program and its arguments. */
export class Commands {
  readonly #inside: Inside;
  constructor(inside: Inside) {
    this.#inside = inside;
  }

  /**
   * Runs a command to its end. If the sandbox is paused meanwhile, SandboxInterruptedError says so,
   * and the command sleeps and wakes with it.
   */
  async run(command: string | string[], options: RunOptions = {}): Promise<Result> {
    const { stdin, check, onStdout, onStderr, ...start } = options;
    const tag = `sdk-${randomUUID()}`;
    let process: Process | undefined;
    let unfed: unknown;
    try {
      process = await this.#start(command, { ...start, stdin: stdin !== undefined }, tag);
      // Not waited for: what the command has left behind may hold its input open, and never read it.
      if (stdin !== undefined) process._feed(stdin).catch((e: unknown) => void (unfed = e));
      const result = await process.wait({ onStdout, onStderr });
      if (unfed && result.ok) throw unfed;
      if (check && !result.ok) throw new CommandError(typeof command === "string" ? command : command.join(" "), result);
      return result;
    } catch (e) {
      // An error of ours: it did not start, or has ended, or sleeps, and a signal might wake it. Else it
      // is ended by its tag, because it may have started without a word of it being heard.
      if (!(e instanceof DrowseError)) await signal(this.#inside, { tag }, "SIGNAL_SIGKILL", 5).catch(() => false);
      throw e;
    } finally {
      process?.close();
    }
  }

  /** Starts a command, and returns once it runs. Closing what is returned lets the command run on. */
  async start(command: string | string[], options: StartOptions = {}): Promise<Process> {
    return this.#start(command, options);
  }

  async #start(command: string | string[], options: StartOptions, tag?: string): Promise<Process> {
    const argv = typeof command === "string" ? ["/bin/bash", "-l", "-c", command] : command;
    if (!argv[0]) throw new DrowseError("there is no command to run");
    const { terminal } = options;
    const envs = { ...(terminal && { TERM: "xterm-256color" }), ...options.env };
    const message = {
      process: { cmd: argv[0], args: argv.slice(1), envs, ...(options.cwd !== undefined && { cwd: options.cwd }) },
      stdin: options.stdin === true || terminal !== undefined,
      ...(tag && { tag }),
      ...(terminal && { pty: { size: { cols: terminal.columns, rows: terminal.rows } } }),
    };
    const answer = await this.#inside.open("process.Process/Start", message, options);
    return Process._begin(this.#inside, answer, options.user, terminal !== undefined, options.signal);
  }

  /**
   * Takes up a command that runs: its output from now on; `missedBytes` says how much nobody got before.
   * `terminal` says whether it is on one.
   */
  async attach(pid: number, options: { terminal?: boolean; user?: string; signal?: AbortSignal } = {}): Promise<Process> {
    const answer = await this.#inside.open("process.Process/Connect", { process: { pid } }, options);
    return Process._begin(this.#inside, answer, options.user, options.terminal === true, options.signal);
  }

  /** The commands that run. */
  async list(): Promise<ProcessInfo[]> {
    const answer = await this.#inside.call("process.Process/List", {});
    return (answer.processes ?? []).map((one: JSONValue) => ({
      pid: one.pid,
      command: [one.config.cmd, ...(one.config.args ?? [])],
      env: one.config.envs ?? {},
      cwd: one.config.cwd,
    }));
  }

  /** Kills a command. False: it had ended. */
  async kill(pid: number): Promise<boolean> {
    return signal(this.#inside, { pid }, "SIGNAL_SIGKILL");
  }
}

async function signal(inside: Inside, process: { pid: number } | { tag: string }, name: string, timeoutSeconds?: number): Promise<boolean> {
  try {
    await inside.call("process.Process/SendSignal", { process, signal: name }, { timeoutSeconds });
    return true;
  } catch (e) {
    if (e instanceof NotFoundError && e.code === "not_found") return false;
    throw e;
  }
}

/** A command that runs. Its output is what one iterates over; `wait` returns how it ended. */
export class Process implements AsyncIterable<Output> {
  /**
   * How many bytes of the output of a command that was attached to nobody has got, because no client was
   * connected then. They are lost.
   */
  readonly missedBytes: number;
  readonly #inside: Inside;
  readonly #answer: Answer;
  readonly #messages: AsyncGenerator<JSONValue, void, undefined>;
  readonly #user: string | undefined;
  readonly #terminal: boolean;
  readonly #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder(), terminal: new TextDecoder() };
  #end: JSONValue;
  readonly #closed = new AbortController();

  private constructor(
    readonly pid: number,
    inside: Inside,
    answer: Answer,
    messages: AsyncGenerator<JSONValue, void, undefined>,
    user: string | undefined,
    terminal: boolean,
  ) {
    this.missedBytes = Number(answer.response.headers.get("Drowse-Missed-Bytes") ?? 0);
    this.#inside = inside;
    this.#answer = answer;
    this.#messages = messages;
    this.#user = user;
    this.#terminal = terminal;
  }

  /** @internal */
  static async _begin(inside: Inside, answer: Answer, user: string | undefined, terminal: boolean, signal?: AbortSignal): Promise<Process> {
    let pid: number | undefined;
    const messages = inside.messages(answer, () => pid, signal);
    try {
      for (;;) {
        const { done, value } = await messages.next();
        if (done) throw new SandboxInterruptedError("the stream ended before the command ran");
        if (value.event?.start) {
          pid = Number(value.event.start.pid);
          return new Process(pid, inside, answer, messages, user, terminal);
        }
      }
    } catch (e) {
      answer.close();
      throw e;
    }
  }

  /** The output as it comes. Text is never cut inside of a character. Who leaves the loop may go on later. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Output, void, undefined> {
    while (!this.#end) {
      const { done, value } = await this.#messages.next();
      if (done) throw new SandboxInterruptedError("the stream ended before the command did", this.pid);
      const event = value.event ?? {};
      if (event.end) {
        this.#end = event.end;
        this.close();
      }
      for (const [name, text] of Object.entries<string>(event.data ?? {})) {
        const stream = name === "stdout" || name === "stderr" ? name : "terminal";
        const data = Buffer.from(text, "base64");
        yield { stream, data, text: this.#decoders[stream].decode(data, { stream: true }) };
      }
    }
  }

  /**
   * Waits for the end of the command. The result has the output that was not iterated over. What it
   * prints on a terminal is in `stdout`.
   */
  async wait(hear: { onStdout?: ((text: string) => void) | undefined; onStderr?: ((text: string) => void) | undefined } = {}): Promise<Result> {
    const out: Uint8Array[] = [];
    const err: Uint8Array[] = [];
    for await (const piece of this) {
      const isError = piece.stream === "stderr";
      (isError ? err : out).push(piece.data);
      if (piece.text) (isError ? hear.onStderr : hear.onStdout)?.(piece.text);
    }
    const stdoutBytes = Buffer.concat(out);
    const stderrBytes = Buffer.concat(err);
    const exitCode = Number(this.#end.exitCode ?? 0);
    const status = String(this.#end.status ?? "");
    const error = String(this.#end.error ?? "");
    return {
      pid: this.pid,
      ok: exitCode === 0,
      exitCode,
      status,
      reason: error === status ? "" : error,
      stdout: new TextDecoder().decode(stdoutBytes),
      stderr: new TextDecoder().decode(stderrBytes),
      stdoutBytes,
      stderrBytes,
    };
  }

  /** Gives the command input: what it reads, or what is typed on its terminal. */
  async send(data: string | Uint8Array): Promise<void> {
    await this.#send(data);
  }

  async #send(data: string | Uint8Array, signal?: AbortSignal): Promise<void> {
    const raw = Buffer.from(data as Uint8Array);
    for (let at = 0; at < raw.length; at += chunk) {
      const text = raw.subarray(at, at + chunk).toString("base64");
      const input = this.#terminal ? { pty: text } : { stdin: text };
      const call = { user: this.#user, again: false, signal };
      await this.#inside.call("process.Process/SendInput", { process: { pid: this.pid }, input }, call);
    }
  }

  /** Says that there is no more input. */
  async closeInput(): Promise<void> {
    await this.#inside.call("process.Process/CloseStdin", { process: { pid: this.pid } }, { user: this.#user });
  }

  /** @internal All of the input of a command. One that has ended or closed it wants no more, as with a pipe. */
  async _feed(data: string | Uint8Array): Promise<void> {
    try {
      // No more once the output is given up: the sandbox may sleep, and input would wake it.
      await this.#send(data, this.#closed.signal);
      if (!this.#closed.signal.aborted) await this.closeInput();
    } catch (e) {
      if (!(e instanceof APIError && ["not_found", "failed_precondition", "internal"].includes(e.code))) throw e;
    }
  }

  /** Tells its terminal the new size. */
  async resize(columns: number, rows: number): Promise<void> {
    const message = { process: { pid: this.pid }, pty: { size: { cols: columns, rows } } };
    await this.#inside.call("process.Process/Update", message, { user: this.#user });
  }

  /** Ends it with SIGKILL. False: it had ended. */
  async kill(): Promise<boolean> {
    return signal(this.#inside, { pid: this.pid }, "SIGNAL_SIGKILL");
  }

  /** Asks it to end, with SIGTERM. False: it had ended. */
  async terminate(): Promise<boolean> {
    return signal(this.#inside, { pid: this.pid }, "SIGNAL_SIGTERM");
  }

  /** Gives up its output and lets it run on. */
  close(): void {
    this.#closed.abort(closed);
    this.#answer.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
