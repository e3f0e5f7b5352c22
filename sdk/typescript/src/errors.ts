// What can go wrong, as errors that say what happened, the state now and the next
// step.

/** Everything that this package throws by itself. */
export class DrowseError extends Error {
  override readonly name: string = "DrowseError";
}

/** No server answered, and nothing was done. */
export class UnreachableError extends DrowseError {
  override readonly name: string = "UnreachableError";
}

/** The connection broke before the answer was complete. What was asked for may have been done. */
export class ConnectionLostError extends DrowseError {
  override readonly name: string = "ConnectionLostError";
}

/** The server did not answer in time. What was asked for may have been done. */
export class RequestTimeoutError extends ConnectionLostError {
  override readonly name: string = "RequestTimeoutError";
}

/**
 * A stream was cut: the sandbox was paused or ended, or the connection broke. A command of a
 * paused sandbox goes on when it wakes: `commands.attach(pid)`.
 */
export class SandboxInterruptedError extends ConnectionLostError {
  override readonly name: string = "SandboxInterruptedError";
  constructor(
    /** What cut it. */
    readonly reason: string,
    /** The command whose output it was, if it was one. */
    readonly pid?: number,
    options?: ErrorOptions,
  ) {
    super(
      pid === undefined ? reason : `${reason}, while process ${pid} ran; if it sleeps, wake it and call commands.attach(${pid})`,
      options,
    );
  }
}

/** How a command ended, and what it printed. */
export interface Result {
  pid: number;
  /** Whether it ended with success. */
  ok: boolean;
  /** -1 if a signal ended it. */
  exitCode: number;
  /** Such as "exit status 2" or "signal: killed". */
  status: string;
  /** Why the sandbox ended the command, such as for want of memory; empty if it did not. */
  reason: string;
  stdout: string;
  stderr: string;
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
}

/** A command that was run with `check` failed. */
export class CommandError extends DrowseError {
  override readonly name: string = "CommandError";
  constructor(
    readonly command: string,
    /** How it ended. */
    readonly result: Result,
  ) {
    const why = result.reason ? `: ${result.reason}` : "";
    const last = result.stderr.trim() ? `\n${result.stderr.trim().slice(-2000)}` : "";
    super(`${JSON.stringify(command.slice(0, 200))} ended with ${result.status || result.exitCode}${why}${last}`);
  }
}

/** A command ran longer than it may, and was killed. */
export class CommandTimeoutError extends DrowseError {
  override readonly name: string = "CommandTimeoutError";
}

export interface Refused {
  message: string;
  /** The HTTP status. */
  status: number;
  /** A stable name of what is wrong: docs/api/errors.md has all of them. */
  code?: string;
  /** The next step. */
  remediation?: string;
  /** What lies behind it. */
  cause?: string;
  /** Facts for programs. */
  context?: Record<string, unknown>;
}

/** The server, or the sandbox, refused. */
export class APIError extends DrowseError {
  override readonly name: string = "APIError";
  readonly status: number;
  readonly code: string;
  /** What happened and the state now, without the next step. */
  readonly detail: string;
  readonly remediation: string;
  readonly reason: string;
  readonly context: Record<string, unknown>;

  constructor(r: Refused) {
    const next = r.remediation && !r.message.includes(r.remediation) ? `. Next step: ${r.remediation}` : "";
    super(r.message + next + (r.code ? ` [${r.code}]` : ""));
    this.status = r.status;
    this.code = r.code ?? "";
    this.detail = r.message;
    this.remediation = r.remediation ?? "";
    this.context = r.context ?? {};
    this.reason = typeof this.context["reason"] === "string" ? this.context["reason"] : (r.cause ?? "");
  }

  /** The state of the sandbox when it refused, where that is known. */
  get state(): string | undefined {
    const state = this.context["state"];
    return typeof state === "string" ? state : undefined;
  }
}

/** The request can never succeed as it is. */
export class InvalidRequestError extends APIError {
  override readonly name: string = "InvalidRequestError";
}
/** No valid API key. */
export class AuthenticationError extends APIError {
  override readonly name: string = "AuthenticationError";
}
/** The API key may not do this. */
export class PermissionDeniedError extends APIError {
  override readonly name: string = "PermissionDeniedError";
}
/** There is no such thing. */
export class NotFoundError extends APIError {
  override readonly name: string = "NotFoundError";
}
/** The sandbox has ended. `reason` says of what, such as Killed or OutOfMemory. */
export class SandboxEndedError extends NotFoundError {
  override readonly name: string = "SandboxEndedError";
}
/** The state does not allow it, such as a pause of a sandbox that sleeps. */
export class ConflictError extends APIError {
  override readonly name: string = "ConflictError";
}
/** The sandbox sleeps, and this may not wake it. */
export class NotRunningError extends ConflictError {
  override readonly name: string = "NotRunningError";
}
/** A limit is reached: a quota, a rate, the disk. */
export class LimitError extends APIError {
  override readonly name: string = "LimitError";
}
/** Not possible right now; the server may be able to in a moment. */
export class UnavailableError extends APIError {
  override readonly name: string = "UnavailableError";
}

/** Some children of a fork did not start. */
export class ForkError<Sandbox = unknown> extends DrowseError {
  override readonly name: string = "ForkError";
  constructor(
    /** Those that did. */
    readonly sandboxes: Sandbox[],
    /** Why the others did not. */
    readonly errors: APIError[],
  ) {
    super(`${errors.length} of ${errors.length + sandboxes.length} children did not start: ${errors[0]?.message}`);
  }
}

const classes: Record<number, new (r: Refused) => APIError> = {
  400: InvalidRequestError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  409: ConflictError,
  413: InvalidRequestError,
  422: InvalidRequestError,
  429: LimitError,
  502: UnavailableError,
  503: UnavailableError,
  504: UnavailableError,
  507: LimitError,
};

const asleep = new Set(["not_running", "not_resumable", "sandbox_not_running"]);

/** The statuses that belong to the codes of the Connect protocol. */
const rpc: Record<string, number> = {
  invalid_argument: 400,
  failed_precondition: 400,
  out_of_range: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  aborted: 409,
  resource_exhausted: 429,
  unimplemented: 501,
  unavailable: 503,
  deadline_exceeded: 504,
};

/** The error of the class that an answer belongs to. */
export function refusal(r: Refused): APIError {
  let kind = classes[r.status] ?? APIError;
  if (r.context?.["state"] === "terminated" || r.code === "sandbox_terminated") kind = SandboxEndedError;
  else if (asleep.has(r.code ?? "")) kind = NotRunningError;
  else if (r.code === "idempotency_key_reused") kind = ConflictError;
  else if (r.code === "timeout_too_large") kind = LimitError;
  return new kind(r);
}

const text = (v: unknown): string => (typeof v === "string" ? v : "");
const isObject = (v: unknown): v is Record<string, unknown> => typeof v === "object" && v !== null && !Array.isArray(v);

/** The refusal that an object of the API tells of. */
export function refusalOf(status: number, e: Record<string, unknown>): APIError {
  return refusal({
    message: text(e["message"]) || `the server answered ${status}`,
    status,
    code: text(e["code"]),
    remediation: text(e["remediation"]),
    cause: text(e["cause"]),
    context: isObject(e["context"]) ? e["context"] : {},
  });
}

/**
 * The error for an answer that refuses: of the control plane, of the proxy in front of sandboxes,
 * or of a sandbox's agent.
 */
export function errorOf(status: number, body: string): DrowseError {
  let wire: unknown;
  try {
    wire = JSON.parse(body);
  } catch {
    // It is not the server's own.
  }
  if (!isObject(wire)) {
    const said = body.slice(0, 200).trim();
    return refusal({ message: `the server answered ${status}${said ? `: ${said}` : ""}`, status });
  }
  if (isObject(wire["error"])) return refusalOf(status, wire["error"]);
  if (typeof wire["code"] === "string") return errorOfRPC(wire);
  const message = text(wire["message"]) || `the server answered ${status}`;
  if (wire["interrupted"]) return new SandboxInterruptedError(message);
  let code = text(wire["error_code"]);
  const context: Record<string, unknown> = {};
  for (const name of ["reason", "endedAt", "pausedAt"]) if (wire[name]) context[name] = wire[name];
  if (wire["sandboxId"]) {
    context["sandbox"] = wire["sandboxId"];
    if (wire["endedAt"]) context["state"] = "terminated";
    else if (wire["pausedAt"]) context["state"] = "paused";
    if (status === 502 && !code) code = wire["port"] ? "port_closed" : "sandbox_not_running";
  }
  return refusal({ message, status, code, remediation: text(wire["remedy"]), context });
}

/** The error for one of the Connect protocol, which ends a stream too. */
export function errorOfRPC(error: Record<string, unknown>, pid?: number): DrowseError {
  const code = text(error["code"]) || "unknown";
  const message = text(error["message"]);
  // Only the server in front of the agent says so, when it ends a stream.
  if (code === "unavailable" || code === "aborted") return new SandboxInterruptedError(message || "the connection to the sandbox was cut", pid);
  if (code === "deadline_exceeded") return new CommandTimeoutError(message || "the command ran longer than it may");
  return refusal({ message: message || code, status: rpc[code] ?? 500, code });
}
