// Writes every example of pages as a module of its own: examples.mjs PAGE... writes
// example-1.ts and so on.
import { readFileSync, writeFileSync } from "node:fs";

let n = 0;
for (const page of process.argv.slice(2)) {
  const blocks = [...readFileSync(page, "utf8").matchAll(/^```(?:ts|typescript)\n(.*?)^```/gms)];
  if (!blocks.length) throw new Error(`${page} has no example`);
  for (const [, block] of blocks) writeFileSync(`example-${++n}.ts`, block + "export {};\n");
}
