"use strict";
(() => {
  const send = async (to, path, body, more = {}) => {
    const q = new URLSearchParams({ path, ...more });
    const resp = await fetch(`${to}?${q}`, { method: "PUT", body, headers: { "X-Drowse-Token": window.drowse.token, "Content-Type": "application/octet-stream" } });
    const said = await resp.json().catch(() => ({}));
    if (!resp.ok) throw new Error(said.error ? `${said.error.message}; next step: ${said.error.remediation || "try again"}` : `the server answered ${resp.status}`);
    return said;
  };

  const edit = document.getElementById("edit");
  if (edit) {
    const text = document.getElementById("text"), saved = document.getElementById("saved");
    let before = text.value;
    const save = async () => {
      saved.textContent = "Saving…";
      const now = text.value;
      try {
        const body = edit.dataset.crlf ? now.replaceAll("\n", "\r\n") : now;
        edit.dataset.hash = (await send(edit.dataset.to, edit.dataset.path, body, { hash: edit.dataset.hash })).hash;
        before = now;
        saved.textContent = "Saved.";
      } catch (e) {
        saved.textContent = `Not saved: ${e.message}`;
      }
    };
    edit.addEventListener("submit", (e) => { e.preventDefault(); save(); });
    text.addEventListener("keydown", (e) => { if ((e.ctrlKey || e.metaKey) && e.key === "s") { e.preventDefault(); save(); } });
    window.addEventListener("beforeunload", (e) => { if (text.value !== before) e.preventDefault(); });
  }

  const upload = document.getElementById("upload");
  if (upload) {
    const said = document.getElementById("uploaded");
    upload.addEventListener("submit", async (e) => {
      e.preventDefault();
      const there = new Set([...document.querySelectorAll("[data-name]")].map((n) => n.dataset.name));
      const dir = upload.dataset.dir.replace(/\/$/, "");
      const list = [...upload.querySelector("input[type=file]").files];
      const same = list.filter((f) => there.has(f.name));
      if (same.length > 0 && !upload.elements.replace.checked) { said.textContent = `Not uploaded: ${same[0].name} is there already.`; return; }
      try {
        for (const [i, f] of list.entries()) {
          said.textContent = `Uploading ${f.name} (${i + 1} of ${list.length})…`;
          await send(upload.dataset.to, `${dir}/${f.name}`, f);
        }
        location.reload();
      } catch (err) {
        said.textContent = `Not uploaded: ${err.message}`;
      }
    });
  }
})();
