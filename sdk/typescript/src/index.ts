/// <reference lib="esnext.disposable" preserve="true" />
/**
 * Sandboxes that sleep when nothing happens, and wake with their memory, their processes and their
 * files.
 *
 * @module
 */

export type { Secrets, Snapshots } from "./admin.js";
export { Client, type ClientOptions, type Content, type EventsOptions } from "./client.js";
export type { Commands, Output, Process, ProcessInfo, RunOptions, StartOptions } from "./commands.js";
export {
  APIError,
  AuthenticationError,
  CommandError,
  CommandTimeoutError,
  ConflictError,
  ConnectionLostError,
  DrowseError,
  ForkError,
  InvalidRequestError,
  LimitError,
  NotFoundError,
  NotRunningError,
  PermissionDeniedError,
  RequestTimeoutError,
  type Result,
  SandboxEndedError,
  SandboxInterruptedError,
  UnavailableError,
  UnreachableError,
} from "./errors.js";
export type { AsUser, FileInfo, Files } from "./files.js";
export * from "./models.js";
export { type Hold as SandboxHold, type ListOptions, type Mode, type PortRequest, Sandbox, type WithClient } from "./sandbox.js";
export type { Services } from "./services.js";
export { version } from "./version.js";
