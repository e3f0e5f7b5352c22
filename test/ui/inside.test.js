import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, api, create, drowse, patience, signedIn, start, stop, url, view } from "./world.js";

before(start);
after(stop);

const shows = (page, text) => page.waitForFunction((t) => window.drowse.screen().includes(t), text, { timeout: patience });
const state = async (id) => (await api("GET", `/v1/sandboxes/${id}`)).state;

test("a terminal goes on over a sleep and a wake", async () => {
  const sb = await create({ autoResume: true, onTimeout: "pause", timeoutSeconds: 3600, metadata: { name: "terminal" } });
  const { page, problems } = await signedIn();
  await page.goto(`${url}/ui/sandboxes/${sb.id}/terminal`);
  await page.getByRole("button", { name: "Open a shell" }).click();
  await page.locator("#shell", { hasText: "Process" }).waitFor();
  await page.keyboard.type("cd /tmp; kept=$((6*7)); echo before-$kept; printf '\\033[38;2;200;30;60mcolour\\033[0m\\n'\n");
  await shows(page, "before-42");
  // The page's policy lets colours through. What is on the screen is drawn a moment later.
  await page.waitForFunction(() => [...document.querySelectorAll(".xterm-rows span")].some((el) => el.textContent === "colour" && getComputedStyle(el).color === "rgb(200, 30, 60)"), null, { timeout: patience });
  const pid = (await page.locator("#shell").innerText()).match(/\d+/)[0];
  await view(page, "terminal");
  await drowse("pause", sb.id);
  await page.getByText("was put to sleep, and your shell with it").waitFor();
  await page.locator("[data-live=state] .s-paused").waitFor();
  await page.waitForTimeout(1500);
  assert.equal(await state(sb.id), "paused", "a terminal that waits wakes nothing");
  await page.keyboard.type("x\n");
  await page.getByText(`Awake again, in the same shell (process ${pid})`).waitFor();
  assert.equal(await state(sb.id), "running");
  await page.keyboard.type("echo after-$kept-$PWD\n");
  await shows(page, "after-42-/tmp");
  await page.keyboard.press("F6");
  assert.equal(await page.evaluate(() => document.activeElement.id), "reader", "the keyboard can leave the terminal");
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type("exit 3\n");
  await page.getByText("The shell has ended: exit status 3").waitFor();
  // A shell ends with its page.
  await page.getByRole("button", { name: "Open a shell" }).click();
  await page.locator("#shell", { hasText: "Process" }).waitFor();
  await page.goto(`${url}/ui/`);
  for (const end = Date.now() + patience; ; await new Promise((r) => setTimeout(r, 200))) {
    const { holds } = await api("GET", `/v1/sandboxes/${sb.id}/lifecycle`);
    if (holds.length === 0) break;
    assert.ok(Date.now() < end, `it has holds still: ${JSON.stringify(holds)}`);
  }
  assert.deepEqual(problems, []);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
});

test("files: browse, edit, upload, download, and no wake without a click", async () => {
  const sb = await create({ autoResume: true, onTimeout: "pause", timeoutSeconds: 3600, metadata: { name: "files" } });
  const hostile = `<img src=x onerror=alert(1)> "'&?#%`;
  await drowse("exec", sb.id, "--", "sh", "-c", 'mkdir -p ~/work/sub && cd ~/work && printf "one\\ntwo\\n" >a.txt && printf "x\\r\\ny\\r\\n" >dos.txt && printf "\\n\\nlate\\n" >late.txt && head -c 3000 /dev/urandom >data.bin && printf secret >"$1"', "sh", hostile);
  const { page, problems } = await signedIn();
  await page.goto(`${url}/ui/sandboxes/${sb.id}/files`);
  await page.getByRole("link", { name: "work" }).click();
  await page.getByRole("link", { name: "a.txt", exact: true }).waitFor();
  assert.equal(await page.getByRole("row").filter({ hasText: "onerror" }).count(), 1);
  await view(page, "files");

  await page.getByRole("link", { name: "a.txt", exact: true }).click();
  const text = page.getByRole("textbox");
  assert.equal(await text.inputValue(), "one\ntwo\n");
  await view(page, "file");
  await text.fill("one\n<two>\nthree");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("Saved.").waitFor();
  const cat = (name) => drowse("exec", sb.id, "--", "sh", "-c", `cat ~/work/${name} | od -An -c | tr -d '\\n' | tr -s ' '`);
  assert.equal(await cat("a.txt"), "o n e \\n < t w o > \\n t h r e e");
  await drowse("exec", sb.id, "--", "sh", "-c", "echo other >~/work/a.txt");
  await text.fill("mine");
  await text.press("Control+s");
  await page.getByText("the file has changed since it was opened").waitFor();
  assert.match(await cat("a.txt"), /^o t h e r/);
  await text.fill("one\n<two>\nthree"); // nothing is left to lose

  for (const [name, want] of [["dos.txt", "x \\r \\n z \\r \\n"], ["late.txt", "\\n \\n l z t e \\n"]]) {
    await page.goto(`${url}/ui/sandboxes/${sb.id}/file?path=/home/user/work/${name}`);
    const now = await text.inputValue();
    await text.fill(now.replace(/[ya]/, "z"));
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Saved.").waitFor();
    assert.equal(await cat(name), want);
  }
  await page.goto(`${url}/ui/sandboxes/${sb.id}/file?path=/home/user/work/data.bin`);
  await page.getByText("it is not text").waitFor();

  await page.goto(`${url}/ui/sandboxes/${sb.id}/files?path=/home/user/work`);
  const big = Buffer.alloc(3 << 20, "drowse");
  await page.getByLabel("Files to upload").setInputFiles([{ name: "big.bin", mimeType: "application/octet-stream", buffer: big }]);
  await page.getByRole("button", { name: "Upload", exact: true }).click();
  await page.getByRole("link", { name: "big.bin", exact: true }).waitFor();
  for (const [name, check] of [["big.bin", (b) => assert.ok(b.equals(big))], [hostile, (b) => assert.equal(b.toString(), "secret")]]) {
    const [got] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: `Download ${name}` }).click()]);
    const chunks = [];
    for await (const c of await got.createReadStream()) chunks.push(c);
    check(Buffer.concat(chunks));
  }

  await drowse("pause", sb.id);
  for (const path of ["files?path=/home/user/work", "file?path=/home/user/work/a.txt", "download?path=/home/user/work/a.txt", "files?wake=yes"]) {
    await page.goto(`${url}/ui/sandboxes/${sb.id}/${path}`);
    await page.getByRole("heading", { name: "It is asleep" }).waitFor();
    assert.equal(await state(sb.id), "paused");
  }
  await page.goto(`${url}/ui/sandboxes/${sb.id}/files?path=/home/user/work`);
  await accessible(page, "files of one that sleeps");
  await page.getByRole("button", { name: "Wake it and go on" }).click();
  await page.getByRole("link", { name: "dos.txt", exact: true }).waitFor();
  assert.equal(await state(sb.id), "running");
  assert.deepEqual(problems.filter((p) => !p.startsWith("dialog")), []);
  await api("DELETE", `/v1/sandboxes/${sb.id}`);
});
