// Makes elements of the page. Texts never become markup.

/** An element with properties, such as `className` and event handlers, and children. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The lines of a text that are not blank. */
export const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** The field of a task for long texts. */
export const texts = (label, value) => ({ label, value, rows: 4 });

/** A labelled control. */
export function labelled(text, control) {
  return element("label", {}, text, control);
}

/** A table of names and scores from 0 to `max`, each with a bar. */
export function scoreTable(rows, max = 1) {
  return element("table", {}, ...rows.map(([name, score]) => element("tr", {},
    element("td", {}, name),
    element("td", {}, element("meter", { min: 0, max, value: score })),
    element("td", {}, score.toFixed(3)))));
}

/** A text with marked parts `{start, end, make(text)}` in characters, sorted by their place. */
export function marked(text, parts) {
  const characters = [...text];  // by code point, as the server counts
  const nodes = [];
  let at = 0;
  for (const { start, end, make } of parts) {
    nodes.push(characters.slice(at, start).join(""), make(characters.slice(start, end).join("")));
    at = end;
  }
  return element("span", {}, ...nodes, characters.slice(at).join(""));
}
