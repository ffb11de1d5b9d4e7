// How counts, times and speeds are written.

const count = new Intl.NumberFormat("en-US");

export const tokens = (n) => count.format(n);

export function seconds(ms) {
  if (ms < 199.5) return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  return ms < 9950 ? `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s` : `${(ms / 1000).toFixed(0)} s`;
}

export function rate(value) {
  return value < 9.95 ? value.toFixed(1) : value.toFixed(0);
}

/** The three numbers of an answer in one line. */
export function numbers(stats) {
  const read = stats.prompt_tokens === null ? "prompt tokens unknown" : `${tokens(stats.prompt_tokens)} prompt tokens`;
  const cached = stats.cached_tokens ? ` (${tokens(stats.cached_tokens)} cached)` : "";
  const first = stats.ttft_ns === null ? "–" : seconds(stats.ttft_ns / 1e6);
  const speed = stats.tokens_per_s === null ? "too short for a speed" : `${rate(stats.tokens_per_s)} tok/s`;
  const dropped = stats.dropped ? ` · ${stats.dropped} messages dropped` : "";
  return `${read}${cached} · ${first} to first token · ${speed}${dropped}`;
}

/** Show a figure on the panel; `kind` is live (still running) or about (estimated). */
export function readout(id, text, kind = "") {
  const [, number, unit] = text.match(/^(.*?)(?: (s|ms))?$/);
  const element = document.getElementById(id);
  element.className = kind;
  element.textContent = number;
  if (unit) {
    const small = document.createElement("small");
    small.textContent = unit;
    element.append(small);
  }
}

export function clearReadouts() {
  for (const id of ["prompt_tokens", "ttft", "speed"]) readout(id, "–");
}
