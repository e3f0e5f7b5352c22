// Processes that start with a sandbox.

import type { Client } from "./client.js";
import { below } from "./config.js";
import type { LogLine, Service, ServiceInfo } from "./models.js";

/** Processes that start with a sandbox, and are started again when they end. */
export class Services {
  readonly #client: Client;
  readonly #path: string;
  constructor(client: Client, path: string) {
    this.#client = client;
    this.#path = path + "/services";
  }

  /** All, and how they are. It wakes nothing. */
  async list(): Promise<ServiceInfo[]> {
    return (await this.#client.request("GET", this.#path)).services;
  }

  async get(name: string): Promise<ServiceInfo> {
    return this.#client.request("GET", below(this.#path, name));
  }

  /** Adds one, or replaces the one of its name. */
  async set(service: Service): Promise<ServiceInfo> {
    return this.#client.request("PUT", below(this.#path, service.name), { body: service });
  }

  /** Makes these all services of the sandbox. Those that are as before run on. */
  async setAll(services: Service[]): Promise<ServiceInfo[]> {
    return (await this.#client.request("PUT", this.#path, { body: { services } })).services;
  }

  /** Ends one, and removes it. */
  async remove(name: string): Promise<void> {
    await this.#client.request("DELETE", below(this.#path, name));
  }

  /** Ends what runs of one, and starts it at once. */
  async restart(name: string): Promise<ServiceInfo> {
    return this.#client.request("POST", below(this.#path, name, "restart"));
  }

  /** The last lines that one has written since the sandbox booted. */
  async log(name: string, options: { after?: number; lines?: number } = {}): Promise<LogLine[]> {
    const query: Record<string, string> = {};
    if (options.after) query["after"] = String(options.after);
    if (options.lines !== undefined) query["lines"] = String(options.lines);
    return (await this.#client.request("GET", below(this.#path, name, "log"), { query })).lines;
  }
}
