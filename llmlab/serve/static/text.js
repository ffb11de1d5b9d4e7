// The text of an answer as elements: paragraphs, code, **bold** and *emphasis*. No HTML of a model is ever parsed.

const INLINE = /`(?<code>[^`\n]+)`|\*\*(?<strong>[^*\n]+)\*\*|(?<![\w*])\*(?<em>[^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])/g;

/** Show `text` in `element`; what stands there already and did not change is left alone. */
export function showText(element, text) {
  const blocks = split(text);
  while (element.childElementCount > blocks.length) element.lastElementChild.remove();
  blocks.forEach((block, index) => {
    const shown = element.children[index];
    const source = `${block.code}\n${block.text}`;
    if (shown?.dataset.source === source) return;
    const made = block.code ? codeBlock(block.text) : paragraph(block.text);
    made.dataset.source = source;
    if (shown) shown.replaceWith(made);
    else element.append(made);
  });
}

/** Blocks of text and fenced code; a fence that is not closed yet lasts to the end. */
function split(text) {
  const blocks = [];
  text.split(/^ {0,3}```[^\n`]*\n?/m).forEach((part, index) => {
    if (index % 2) blocks.push({ code: true, text: part.replace(/\n$/, "") });
    else for (const block of part.split(/\n{2,}/)) if (block.trim()) blocks.push({ code: false, text: block.replace(/^\n+|\n+$/g, "") });
  });
  return blocks;
}

function codeBlock(text) {
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  code.textContent = text;
  pre.tabIndex = 0;
  pre.append(code);
  return pre;
}

function paragraph(text) {
  const element = document.createElement("p");
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    element.append(text.slice(from, match.index));
    const [name, inside] = Object.entries(match.groups).find(([, found]) => found !== undefined);
    const inner = document.createElement(name);
    inner.textContent = inside;
    element.append(inner);
    from = match.index + match[0].length;
  }
  element.append(text.slice(from));
  return element;
}
