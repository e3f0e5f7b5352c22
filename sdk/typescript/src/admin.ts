// What belongs to an API key, and to no sandbox: snapshots and secrets.

import type { Client } from "./client.js";
import { below } from "./config.js";
import type { Secret, SecretOptions, Snapshot, SnapshotChange } from "./models.js";

/**
 * Checkpoints that sandboxes can start from: `create({ snapshot: "name" })`. A snapshot is named by
 * its id or name.
 */
export class Snapshots {
  readonly #client: Client;
  constructor(client: Client) {
    this.#client = client;
  }

  /** All, newest first. */
  async list(): Promise<Snapshot[]> {
    return (await this.#client.request("GET", "/v1/snapshots")).snapshots;
  }

  async get(snapshot: string): Promise<Snapshot> {
    return this.#client.request("GET", below("/v1/snapshots", snapshot));
  }

  /** Changes how long it is kept. */
  async change(snapshot: string, change: SnapshotChange): Promise<Snapshot> {
    return this.#client.request("PATCH", below("/v1/snapshots", snapshot), { body: change });
  }

  /** Deletes it. Sandboxes that started from it are kept. */
  async remove(snapshot: string): Promise<void> {
    await this.#client.request("DELETE", below("/v1/snapshots", snapshot));
  }
}

/**
 * Values that sandboxes use without having them: the server puts them into requests to their hosts.
 * `create({ secrets: ["name"] })` gives a sandbox the use of one.
 */
export class Secrets {
  readonly #client: Client;
  constructor(client: Client) {
    this.#client = client;
  }

  /** Makes a secret, or replaces the one of that name. */
  async set(name: string, secret: SecretOptions): Promise<Secret> {
    return this.#client.request("PUT", below("/v1/secrets", name), { body: secret });
  }

  /** Replaces the value, also for sandboxes that run or sleep. */
  async rotate(name: string, value: string): Promise<Secret> {
    return this.#client.request("POST", below("/v1/secrets", name, "rotate"), { body: { value } });
  }

  /** All, oldest first, without their values. */
  async list(): Promise<Secret[]> {
    return (await this.#client.request("GET", "/v1/secrets")).secrets;
  }

  async get(name: string): Promise<Secret> {
    return this.#client.request("GET", below("/v1/secrets", name));
  }

  /** Makes it worthless at once, also for sandboxes that run. */
  async remove(name: string): Promise<void> {
    await this.#client.request("DELETE", below("/v1/secrets", name));
  }
}
