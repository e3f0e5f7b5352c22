// Files in a sandbox.

import { type Content, broken } from "./client.js";
import { ConflictError, NotFoundError, SandboxInterruptedError } from "./errors.js";
import type { Inside } from "./inside.js";
import type { JSONValue } from "./wire.js";

/** A file or directory. */
export interface FileInfo {
  name: string;
  path: string;
  /** Of a link that of what it leads to; symlink if it leads nowhere. */
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: number;
  /** As ls -l prints them. */
  permissions: string;
  owner: string;
  group: string;
  modified: Date | undefined;
  /** Of a symbolic link. */
  target: string | undefined;
}

const types: Record<string, FileInfo["type"]> = {
  FILE_TYPE_FILE: "file",
  FILE_TYPE_DIRECTORY: "directory",
  FILE_TYPE_SYMLINK: "symlink",
};

function fileInfo(wire: JSONValue): FileInfo {
  return {
    name: wire.name ?? "",
    path: wire.path ?? "",
    type: types[wire.type] ?? "other",
    size: Number(wire.size ?? 0),
    mode: wire.mode ?? 0,
    permissions: wire.permissions ?? "",
    owner: wire.owner ?? "",
    group: wire.group ?? "",
    modified: wire.modifiedTime ? new Date(wire.modifiedTime) : undefined,
    target: wire.symlinkTarget,
  };
}

export interface AsUser {
  /** Who does it inside (default: the user of the template). */
  user?: string | undefined;
  signal?: AbortSignal | undefined;
}

/** Files in a sandbox. A relative path is below the home directory of the user. */
export class Files {
  readonly #inside: Inside;
  constructor(inside: Inside) {
    this.#inside = inside;
  }

  #query(path: string, as: AsUser): Record<string, string> {
    return as.user ? { path, username: as.user } : { path };
  }

  /** The bytes of a file. */
  async read(path: string, as: AsUser = {}): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const part of this.chunks(path, as)) parts.push(part);
    return Buffer.concat(parts);
  }

  /** A file as text. */
  async readText(path: string, as: AsUser = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.read(path, as));
  }

  /** The bytes of a file as they come, for large ones. */
  async *chunks(path: string, as: AsUser = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const call = { query: this.#query(path, as), again: true, signal: as.signal };
    const answer = await this.#inside.send("GET", "/files", call);
    const chunks = answer.chunks();
    const lost = (e: unknown): SandboxInterruptedError =>
      new SandboxInterruptedError(`the connection to the sandbox broke while ${path} was read`, undefined, { cause: e });
    try {
      for (;;) {
        const { done, value } = await broken(chunks.next(), as.signal, lost);
        if (done) return;
        yield value;
      }
    } finally {
      answer.close();
    }
  }

  /** Makes a file or replaces it, with the directories on the way. */
  async write(path: string, data: string | Uint8Array | Blob | ReadableStream<Uint8Array>, as: AsUser = {}): Promise<void> {
    const answer = await this.#inside.send("POST", "/files", {
      query: this.#query(path, as),
      content: data as Content,
      headers: { "Content-Type": "application/octet-stream" },
      again: !(data instanceof ReadableStream),
      signal: as.signal,
    });
    answer.close();
  }

  /** What is in a directory, so many levels down (default: 1). Links are not followed. */
  async list(path = ".", options: AsUser & { depth?: number | undefined } = {}): Promise<FileInfo[]> {
    const answer = await this.#inside.call("filesystem.Filesystem/ListDir", { path, depth: options.depth ?? 1 }, options);
    return (answer.entries ?? []).map(fileInfo);
  }

  async stat(path: string, as: AsUser = {}): Promise<FileInfo> {
    return fileInfo((await this.#inside.call("filesystem.Filesystem/Stat", { path }, as)).entry);
  }

  async exists(path: string, as: AsUser = {}): Promise<boolean> {
    try {
      await this.stat(path, as);
      return true;
    } catch (e) {
      if (e instanceof NotFoundError && e.code === "not_found") return false;
      throw e;
    }
  }

  /** Makes a directory, with those on the way. One that is there is no error. */
  async makeDir(path: string, as: AsUser = {}): Promise<void> {
    try {
      await this.#inside.call("filesystem.Filesystem/MakeDir", { path }, as);
    } catch (e) {
      if (!(e instanceof ConflictError) || (await this.stat(path, as)).type !== "directory") throw e;
    }
  }

  async rename(path: string, to: string, as: AsUser = {}): Promise<FileInfo> {
    const call = { ...as, again: false };
    return fileInfo((await this.#inside.call("filesystem.Filesystem/Move", { source: path, destination: to }, call)).entry);
  }

  /** Deletes a file, or a directory with all that is in it. What is not there is no error. */
  async remove(path: string, as: AsUser = {}): Promise<void> {
    await this.#inside.call("filesystem.Filesystem/Remove", { path }, as);
  }
}
