// Which server, which key, and how requests get there.

import { isIP } from "node:net";
import { DrowseError } from "./errors.js";

export const agentPort = 49983;

export interface Config {
  url: string;
  dataURL: string;
  apiKey: string;
}

function base(text: string): string {
  const url = URL.canParse(text.trim()) ? new URL(text.trim()) : undefined;
  if (!url?.hostname || !["http:", "https:"].includes(url.protocol) || url.search || url.hash) {
    throw new DrowseError(`the server's URL is ${JSON.stringify(text)}: give http://host:port or https://host, by url or DROWSE_URL`);
  }
  return text.trim().replace(/\/+$/, "");
}

/** What is given, and what is not by the environment, as the command line has it. */
export function configOf(url?: string, apiKey?: string, sandboxURL?: string): Config {
  const env = process.env;
  const api = base(url || env["DROWSE_URL"] || env["E2B_API_URL"] || "http://127.0.0.1:3000");
  const data = sandboxURL || (url ? "" : env["DROWSE_SANDBOX_URL"] || env["E2B_SANDBOX_URL"]);
  const key = (apiKey || env["DROWSE_API_KEY"] || env["E2B_API_KEY"] || "").trim();
  if (!key) throw new DrowseError("there is no API key: give it by apiKey or DROWSE_API_KEY; drowse serve prints it");
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new DrowseError("the API key has characters that no key has: give it by apiKey or DROWSE_API_KEY");
  }
  return { url: api, dataURL: data ? base(data) : api, apiKey: key };
}

/**
 * The URL of a port of a sandbox, and the headers that go with it. Headers name the sandbox where
 * the server takes them: under localhost, an address or sandbox.*.
 */
export function inside(config: Config, sandbox: string, port: number): { url: string; headers: Record<string, string> } {
  const host = new URL(config.dataURL).hostname.toLowerCase();
  if (host === "localhost" || host.startsWith("sandbox.") || isIP(host.replace(/^\[|\]$/g, ""))) {
    return { url: config.dataURL, headers: { "E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": String(port) } };
  }
  return { url: `${config.dataURL}/s/${sandbox}/${port}`, headers: {} };
}

export function sandboxPath(sandbox: string): string {
  const found = /^([a-z0-9]+)(-[a-z0-9]+)?$/.exec(sandbox);
  if (!found) {
    throw new DrowseError(`${JSON.stringify(sandbox.slice(0, 100))} is no id of a sandbox: want lower-case letters and digits`);
  }
  return `/v1/sandboxes/${found[1]}`;
}

/** A path with names below it that may have any character. */
export function below(path: string, ...names: string[]): string {
  for (const name of names) {
    if (["", ".", ".."].includes(name)) throw new DrowseError(`${JSON.stringify(name)} is no name`);
    path += "/" + encodeURIComponent(name);
  }
  return path;
}
