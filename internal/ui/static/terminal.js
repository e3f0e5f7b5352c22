"use strict";
// A shell in a terminal. It is opened by a click, never by itself, because it wakes
// the sandbox. When the sandbox is put to sleep the shell sleeps in it: Enter wakes
// both, and the terminal goes on with the same shell.
(() => {
  const place = document.getElementById("terminal");
  if (!place) return;

  // The terminal makes style elements and sets style attributes. The page's policy
  // lets in what has its nonce, and what comes by the CSSOM.
  const make = document.createElement.bind(document);
  document.createElement = (name, options) => {
    const el = make(name, options);
    if (String(name).toLowerCase() === "style") el.nonce = place.dataset.nonce;
    return el;
  };
  const set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else set.call(this, name, value);
  };

  const open = document.getElementById("open"), status = document.getElementById("shell"), reader = document.getElementById("reader");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => dark.matches
    ? { background: "#1a1d21", foreground: "#e4e6ea", cursor: "#a3aefc", selectionBackground: "#3a4270" }
    : { background: "#ffffff", foreground: "#1f2328", cursor: "#4351c8", selectionBackground: "#cfd5fa",
        black: "#24292f", red: "#b3261e", green: "#1a6b32", yellow: "#7a5200", blue: "#2b49b8", magenta: "#7d3aa8", cyan: "#0b6a75", white: "#57606a",
        brightBlack: "#57606a", brightRed: "#c4372e", brightGreen: "#1f7a3b", brightYellow: "#8a5f00", brightBlue: "#4351c8", brightMagenta: "#8f4abd", brightCyan: "#127a86", brightWhite: "#3c434b" };
  let term, fit, socket, pid = 0, slept = false;

  const say = (text) => { status.textContent = text; };
  const size = () => JSON.stringify({ cols: term.cols, rows: term.rows });
  const bytes = new TextEncoder();
  const send = (data) => { if (socket && socket.readyState === WebSocket.OPEN) socket.send(data); };

  const build = () => {
    place.hidden = false;
    term = new Terminal({ theme: theme(), fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: 13, scrollback: 5000, minimumContrastRatio: 4.5, screenReaderMode: reader.checked });
    fit = new FitAddon.FitAddon();
    term.loadAddon(fit);
    term.open(place);
    fit.fit();
    term.attachCustomKeyEventHandler((e) => {
      if (e.key !== "F6") return true;
      if (e.type === "keydown") { term.blur(); reader.focus(); }
      return false;
    });
    term.onData((text) => {
      if (slept) { if (text.includes("\r")) connect(); return; }
      send(bytes.encode(text));
    });
    term.onBinary((text) => send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
    term.onResize(() => { if (pid && !slept) send(size()); });
    new ResizeObserver(() => fit.fit()).observe(place);
    dark.addEventListener("change", () => { term.options.theme = theme(); });
    reader.addEventListener("change", () => { term.options.screenReaderMode = reader.checked; });
  };

  const connect = () => {
    if (!term) build();
    open.hidden = true;
    slept = false;
    say("Connecting…");
    const address = new URL(place.dataset.socket, location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(address, ["drowse-terminal", "token." + window.drowse.token]);
    socket.binaryType = "arraybuffer";
    let done = false;
    const over = (text, label) => {
      done = true;
      say(text);
      open.textContent = label;
      open.hidden = false;
    };
    socket.onopen = () => socket.send(JSON.stringify({ cols: term.cols, rows: term.rows, pid }));
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") { term.write(new Uint8Array(data)); return; }
      const m = JSON.parse(data);
      if (m.slept) {
        slept = true;
        pid = m.pid;
        over("The sandbox was put to sleep, and your shell with it. Enter wakes both.", "Wake it and go on");
        term.focus();
      } else if (m.pid) {
        if (!m.again && pid) term.write("\r\n");
        pid = m.pid;
        say(m.again ? `Awake again, in the same shell (process ${pid}).` : `Process ${pid}.`);
        term.focus();
      } else if (m.ended) {
        pid = 0;
        over(`The shell has ended: ${m.ended}.`, "Open a shell");
      } else {
        over(`No shell: ${m.reason}${m.step ? `. Next step: ${m.step}` : ""}`, "Try again");
      }
    };
    socket.onclose = () => { if (!done) { pid = 0; over("The connection to the server was lost.", "Open a shell"); } };
  };
  open.addEventListener("click", connect);
  // For tests, and for people who look at the console: what the terminal shows.
  window.drowse.screen = () => {
    if (!term) return "";
    const b = term.buffer.active, lines = [];
    for (let i = 0; i < b.length; i++) lines.push(b.getLine(i).translateToString(true));
    return lines.join("\n");
  };
})();
