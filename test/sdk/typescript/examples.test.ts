// Runs every example of the pages about the SDK, each as a program of its own.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile, readdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const built = dirname(fileURLToPath(import.meta.url));
const examples = (await readdir(built)).filter((name) => /^example-\d+\.js$/.test(name));
assert(examples.length > 1);
for (const name of examples) {
  test(name, async () => {
    const { stdout } = await promisify(execFile)(process.execPath, [join(built, name)], { timeout: 120_000 });
    const source = await readFile(join(built, "..", name.replace(/js$/, "ts")), "utf8");
    for (const [, wanted] of source.matchAll(/\/\/ -> (.*)/g)) {
      assert(stdout.split("\n").includes(wanted!), `${wanted} is not in ${stdout}`);
    }
  });
}
