// The page: a conversation that the browser keeps, and the figures of each answer.

import { WindowBar } from "/static/bar.js";
import { clearReadouts, numbers, rate, readout, seconds, tokens } from "/static/figures.js";
import { events } from "/static/stream.js";
import { showTurn } from "/static/turn.js";

const STOPPED = "\n[stopped here]";
const KEPT = "llmlab.conversation";
const KEY = "llmlab.key";
const WINDOWS = [512, 1024, 2048, 4096, 8192, 16384, 32768];
const CHARS_PER_TOKEN = 4;
const $ = (id) => document.getElementById(id);
const bar = new WindowBar(document.querySelector(".window"));

/** @type {{question: string, answer: string, thinking: string, pinned: boolean, dropped: boolean, state: string,
 *           numbers: string, notes: {text: string, error?: boolean}[], element?: HTMLElement}[]} */
let turns = [];
let running = null;
let info = { model: "", models: [], num_ctx: null, budget: true };

// Asking

async function ask(question) {
  const turn = { question, answer: "", thinking: "", pinned: false, dropped: false, state: "streaming", numbers: "", notes: [] };
  const body = request(question);
  turns.push(turn);
  show(turn);
  toEnd();
  const call = new Call(turn);
  running = call;
  buttons();
  try {
    await call.read(body);
  } finally {
    const following = atEnd();
    running = null;
    buttons();
    show(turn);
    if (following) toEnd();
    keep();
    preview();
  }
}

/** One question on its way: the stop watch until the first piece, then the pieces. */
class Call {
  constructor(turn) {
    this.turn = turn;
    this.leaving = new AbortController();
    this.started = performance.now();
    this.first = null;
    this.bar = null;
    this.drawn = false;
    this.ticking = setInterval(() => this.tick(), 100);
    say("Waiting for the first token");
  }

  stop() {
    this.leaving.abort();
  }

  async read(body) {
    try {
      const response = await post("/chat", body, this.leaving.signal);
      if (!response.ok) throw await refusal(response);
      let ended = false;
      for await (const { event, data } of events(response)) {
        if (event === "stats") ended = this.stats(data);
        else if (event === "error") throw new Failure(data.error, data.hint);
        else if (event === "receipt") this.receipt(data);
        else this.piece(data);
      }
      if (!ended) throw new Failure("the answer broke off", "The connection to llmlab was lost");
    } catch (error) {
      this.failed(error);
    } finally {
      clearInterval(this.ticking);
    }
  }

  piece(data) {
    if (this.first === null) {
      this.first = performance.now();
      readout("ttft", seconds(this.first - this.started), "live");
    }
    if (data.thinking) this.turn.thinking += data.thinking;
    if (data.delta) this.turn.answer += data.delta;
    this.draw();
  }

  /** At most one drawing for each frame of the screen, however fast the pieces come. */
  draw() {
    if (this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => {
      this.drawn = false;
      if (this.turn.state !== "streaming") return;
      const following = atEnd();
      show(this.turn);
      if (following) toEnd();
    });
  }

  receipt(data) {
    this.bar = data.window;
    markDropped(data.dropped);
    if (data.window) readout("prompt_tokens", `≈ ${tokens(data.window.system + data.window.pinned + data.window.kept)}`, "about");
  }

  tick() {
    const now = performance.now();
    if (this.first === null) {
      readout("ttft", seconds(now - this.started), "live");
      this.turn.element.querySelector(".waiting").textContent = `waiting ${((now - this.started) / 1000).toFixed(0)} s`;
      return;
    }
    const written = (this.turn.answer.length + this.turn.thinking.length) / CHARS_PER_TOKEN;
    const passed = (now - this.first) / 1000;
    if (passed > 0.5) readout("speed", `≈ ${rate(written / passed)}`, "about");
    bar.show(this.bar, Math.round(written));
  }

  stats(data) {
    const turn = this.turn;
    turn.state = "done";
    turn.numbers = numbers(data);
    turn.notes = data.notes.map((text) => ({ text }));
    if (data.tool_calls.length) turn.notes.push({ text: `the model asked for ${data.tool_calls.length} tools; this page runs none` });
    else if (!turn.answer) turn.notes.push({ text: turn.thinking ? "no answer: the model only thought" : "no answer" });
    if (data.done_reason === "window_full") turn.notes.push({ text: "stopped: the window is full" });
    readout("prompt_tokens", data.prompt_tokens === null ? "–" : tokens(data.prompt_tokens));
    readout("ttft", data.ttft_ns === null ? "–" : seconds(data.ttft_ns / 1e6));
    readout("speed", data.tokens_per_s === null ? "–" : rate(data.tokens_per_s));
    say(`${turn.answer} — ${turn.numbers}. ${data.notes.join(". ")}`);
    return true;
  }

  failed(error) {
    const turn = this.turn;
    if (error.name === "AbortError") {
      turn.state = turn.answer ? "stopped" : "failed";
      turn.notes = [{ text: "stopped" }];
      say("Stopped");
    } else {
      turn.state = "failed";
      const text = error instanceof Failure ? error.message : "llmlab does not answer. Is it still running?";
      turn.notes = [{ text, error: true }];
      say(`Error: ${text}`);
    }
    clearReadouts();
  }
}

class Failure extends Error {
  constructor(what, hint) {
    super(hint ? `${what}. ${hint}` : what);
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  return new Failure(body.error || `llmlab answered ${response.status}`, body.hint);
}

/** What is asked of /chat and /window. */
function request(question) {
  const messages = answered().flatMap((turn) => [
    { role: "user", content: turn.question, pinned: turn.pinned },
    { role: "assistant", content: turn.answer + (turn.state === "stopped" ? STOPPED : ""), pinned: turn.pinned },
  ]);
  const body = { messages: [...messages, { role: "user", content: question }], budget: $("budget").checked };
  if ($("system").value.trim()) body.system = $("system").value.trim();
  if ($("model").value) body.model = $("model").value;
  if ($("num_ctx").value) body.num_ctx = Number($("num_ctx").value);
  return body;
}

/** The turns that are part of the conversation: a question that got no answer is not. */
function answered() {
  return turns.filter((turn) => turn.answer && turn.state !== "failed" && turn.state !== "streaming");
}

function markDropped(places) {
  const gone = new Set(places);
  answered().forEach((turn, index) => {
    turn.dropped = gone.has(2 * index);
    show(turn);
  });
}

async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.status === 401) {
    await askKey();
    return post(path, body, signal);
  }
  return response;
}

async function askKey() {
  const dialog = $("key-dialog");
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  sessionStorage.setItem(KEY, $("key").value);
}

// The bar, ahead of the question

let previewing = null;
let due = null;

/** How the window would fill if the question were sent as it stands; asked a moment after the last change. */
function preview() {
  clearTimeout(due);
  if (!running) due = setTimeout(fill, 120);
}

async function fill() {
  previewing?.abort();
  previewing = new AbortController();
  try {
    const response = await post("/window", request($("question").value.trim() || "…"), previewing.signal);
    if (running) return;
    if (!response.ok) {
      bar.refuse((await refusal(response)).message);
      return;
    }
    const told = await response.json();
    bar.show(told.window);
    markDropped(told.dropped);
  } catch (error) {
    if (error.name !== "AbortError") bar.refuse("llmlab does not answer");
  }
}

// What is seen

const acts = {
  pin(turn) {
    turn.pinned = !turn.pinned;
    show(turn);
    keep();
    preview();
  },
  again(turn) {
    turns = turns.filter((other) => other !== turn);
    turn.element.remove();
    ask(turn.question);
  },
};

function show(turn) {
  showTurn(turn, acts, running === null);
}

function say(text) {
  $("status").textContent = text;
}

function atEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 120;
}

function toEnd() {
  window.scrollTo({ top: document.documentElement.scrollHeight });
}

function buttons() {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  for (const id of ["model", "num_ctx", "new"]) $(id).disabled = running !== null;
}

// What the browser keeps until its tab is closed

function keep() {
  const kept = turns.filter((turn) => turn.state !== "streaming").map(({ element, ...rest }) => rest);
  const chosen = { system: $("system").value, num_ctx: $("num_ctx").value, budget: $("budget").checked };
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ turns: kept, chosen }));
  } catch {
    // A browser without storage forgets; the conversation on the page goes on.
  }
}

function recall() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? null;
  } catch {
    return null;
  }
}

function option(value, text = value) {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = text;
  return element;
}

async function start() {
  const headers = sessionStorage.getItem(KEY) ? { authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {};
  const response = await fetch("/info", { headers });
  if (response.status === 401) {
    await askKey();
    return start();
  }
  info = await response.json();
  $("model").replaceChildren(...info.models.map((name) => option(name)));
  $("model").value = info.model;
  const windows = [...new Set([...WINDOWS, info.num_ctx].filter(Boolean))].sort((a, b) => a - b);
  $("num_ctx").replaceChildren(...windows.map((size) => option(size, tokens(size))));
  $("num_ctx").value = info.num_ctx ?? "";
  $("budget").checked = info.budget;
  const kept = recall();
  if (kept) {
    $("system").value = kept.chosen.system;
    if (windows.includes(Number(kept.chosen.num_ctx))) $("num_ctx").value = kept.chosen.num_ctx;
    $("budget").checked = kept.chosen.budget;
    turns = kept.turns;
    turns.forEach(show);
  }
  document.body.dataset.ready = "";
  preview();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || running) return;
  $("question").value = "";
  ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.stop();
});
$("stop").addEventListener("click", () => {
  running?.stop();
  $("question").focus();
});
$("new").addEventListener("click", () => {
  turns.forEach((turn) => turn.element?.remove());
  turns = [];
  $("empty").hidden = false;
  clearReadouts();
  keep();
  preview();
  $("question").focus();
});
for (const button of document.querySelectorAll(".starters button"))
  button.addEventListener("click", () => {
    if (!running) ask(button.textContent);
  });
$("question").addEventListener("input", preview);
for (const id of ["model", "num_ctx", "budget", "system"])
  $(id).addEventListener("input", () => {
    keep();
    preview();
  });
$("settings").addEventListener("submit", (event) => event.preventDefault());

start().catch(() => bar.refuse("llmlab does not answer"));
