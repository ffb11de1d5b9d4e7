// One turn of the conversation as it is seen.

import { showText } from "/static/text.js";

/** Show `turn` in its element, made by the first call; `acts` says what its buttons do, `idle` that nothing is asked. */
export function showTurn(turn, acts, idle) {
  const element = (turn.element ??= made(turn, acts));
  const find = (selector) => element.querySelector(selector);
  element.classList.toggle("streaming", turn.state === "streaming");
  element.classList.toggle("pinned", turn.pinned);
  element.classList.toggle("dropped", turn.dropped && !turn.pinned);
  element.setAttribute("aria-busy", turn.state === "streaming");
  find(".pin").setAttribute("aria-pressed", turn.pinned);
  find(".pin span").textContent = turn.pinned ? "Pinned" : "Pin";
  find(".pin").hidden = !turn.answer || turn.state === "failed";
  showText(find(".answer > .text"), turn.answer);
  find(".thinking").hidden = !turn.thinking;
  find(".thinking div").textContent = turn.thinking;
  if (turn.state !== "streaming" || turn.answer || turn.thinking) find(".waiting").textContent = "";
  find(".numbers").textContent = turn.numbers;
  find(".notes").replaceChildren(...turn.notes.map(noted));
  find(".again").hidden = turn.state !== "failed" || !idle;
}

function made(turn, acts) {
  const element = document.getElementById("turn").content.cloneNode(true).firstElementChild;
  showText(element.querySelector(".question .text"), turn.question);
  element.querySelector(".pin").addEventListener("click", () => acts.pin(turn));
  element.querySelector(".again").addEventListener("click", () => acts.again(turn));
  document.getElementById("empty").hidden = true;
  document.getElementById("log").append(element);
  return element;
}

function noted({ text, error }) {
  const item = document.createElement("li");
  item.textContent = text;
  if (error) item.className = "error";
  return item;
}
