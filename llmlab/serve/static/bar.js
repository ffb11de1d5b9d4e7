// The window as a bar: what fills it, what fell out of it, and what is free for the answer.

// What fell out may be many windows long; beyond this share it only says that it is much.
const MOST_DROPPED = 0.38;
const PARTS = ["system", "pinned", "kept", "dropped", "free"];
const count = new Intl.NumberFormat("en-US");

/** Shows what /window and the receipts say of the context window. */
export class WindowBar {
  constructor(section) {
    this.section = section;
    this.track = section.querySelector(".track");
    this.title = section.querySelector("#window-title");
    this.state = section.querySelector("#window-state");
  }

  /** `bar` is null where nobody knows the window; `used` adds tokens of an answer that is being written. */
  show(bar, used = 0) {
    this.section.classList.toggle("bad", Boolean(bar) && bar.free < 0);
    if (!bar) {
      this.title.textContent = "Window unknown";
      this.state.textContent = "the server does not say it";
      this.track.setAttribute("aria-label", "The server does not say how large its window is");
      return;
    }
    const over = Math.max(0, -bar.free);
    const whole = bar.num_ctx + bar.dropped;
    const kept = Math.max(0, bar.kept - over) + used;
    const free = Math.max(0, bar.free - used);
    this.widths(".track > .dropped", Math.min(bar.dropped / whole, MOST_DROPPED));
    this.track.querySelector(".track > .dropped").toggleAttribute("data-none", !bar.dropped);
    // The parts inside the frame share the frame, which ends where the window ends.
    const size = bar.num_ctx;
    this.widths(".frame .over", Math.min(over / size, 1));
    this.widths(".frame .system", bar.system / size);
    this.widths(".frame .pinned", bar.pinned / size);
    this.widths(".frame .kept", Math.min(kept, size) / size);
    this.widths(".frame .reserve", Math.min(bar.reserve, free) / size);
    this.numbers({ ...bar, kept: bar.kept + used, free: bar.free - used });
    this.title.textContent = `Window ${count.format(bar.num_ctx)} tokens`;
    this.state.textContent = this.words(bar, over);
  }

  /** What cannot be sent at all. */
  refuse(text) {
    this.section.classList.add("bad");
    this.state.textContent = text;
  }

  words(bar, over) {
    if (over) return `${count.format(over)} tokens too many: the server drops the oldest`;
    if (!bar.budget) return "no budget: the server decides what is lost";
    if (bar.dropped) return `${count.format(bar.dropped)} tokens left out by the budget`;
    return `${count.format(bar.reserve)} kept free for the answer`;
  }

  numbers(bar) {
    const words = [];
    for (const part of PARTS) {
      const row = this.section.querySelector(`.legend .${part}`);
      row.querySelector("dd").textContent = count.format(Math.max(0, bar[part]));
      row.classList.toggle("zero", !bar[part]);
      if (bar[part]) words.push(`${part} ${count.format(bar[part])}`);
    }
    this.track.setAttribute("aria-label", `Window of ${count.format(bar.num_ctx)} tokens: ${words.join(", ") || "empty"}`);
  }

  widths(selector, share) {
    this.track.parentElement.querySelector(selector).style.width = `${(100 * share).toFixed(3)}%`;
  }
}
