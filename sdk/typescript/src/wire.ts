// Streams taken apart: frames of the Connect protocol, and server-sent events.
// Nothing here does I/O.

import { SandboxInterruptedError } from "./errors.js";

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- what JSON has
export type JSONValue = any;

const largest = 64 << 20; // of a frame; the agent's are small

/** A message as a stream of the Connect protocol has it. */
export function frame(message: unknown): Uint8Array<ArrayBuffer> {
  const body = new TextEncoder().encode(JSON.stringify(message));
  const all = new Uint8Array(5 + body.length);
  new DataView(all.buffer).setUint32(1, body.length);
  all.set(body, 5);
  return all;
}

function joined(parts: Uint8Array[]): Uint8Array {
  return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
}

/** Takes a stream of the Connect protocol apart, however it was cut up. */
export class Frames {
  #parts: Uint8Array[] = [];
  #have = 0;
  #want = 5;

  /** The messages that are complete now, and whether each is the last one. */
  *feed(data: Uint8Array): Generator<{ end: boolean; message: JSONValue }> {
    this.#parts.push(data);
    this.#have += data.length;
    while (this.#have >= this.#want) {
      let buffer = joined(this.#parts);
      this.#parts = [buffer];
      const flags = buffer[0]!;
      const size = new DataView(buffer.buffer, buffer.byteOffset).getUint32(1);
      if (flags & 1 || size > largest) throw new SandboxInterruptedError("the sandbox sent something that is no stream");
      this.#want = 5 + size;
      if (this.#have < this.#want) return;
      const text = new TextDecoder().decode(buffer.subarray(5, this.#want));
      buffer = buffer.subarray(this.#want);
      this.#parts = buffer.length ? [buffer] : [];
      this.#have = buffer.length;
      this.#want = 5;
      yield { end: (flags & 2) !== 0, message: JSON.parse(text || "{}") };
    }
  }
}

/** Takes server-sent events apart, however they were cut up. */
export class EventLines {
  #decoder = new TextDecoder();
  #rest = "";
  #data: string[] = [];
  #id = "";

  /** The id and the data of the events that are complete now. One without data says where the stream is. */
  *feed(data: Uint8Array): Generator<{ id: number | undefined; data: string }> {
    const lines = (this.#rest + this.#decoder.decode(data, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const whole of lines) {
      const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "data") this.#data.push(value);
      else if (name === "id") this.#id = value;
      else if (line === "") {
        const text = this.#data.join("\n");
        this.#data = [];
        yield { id: /^\d+$/.test(this.#id) ? Number(this.#id) : undefined, data: text };
      }
    }
  }
}
