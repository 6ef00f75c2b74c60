// The tasks of embedding models: similarities of vectors, weights of tokens, and what tokens find in others.

import { infer, inferRequest } from "./api.js";
import { element, lines, scoreTable, texts } from "./elements.js";

const NUM_TOKENS = 12;  // of a sparse vector

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const rowsOf = ({ data, shape: [count, size] }) => (
  Array.from({ length: count }, (_, i) => data.slice(i * size, (i + 1) * size)));

/** A cell with a number, coloured by its share of `highest`. */
function cellOf(value, highest = 1) {
  const cell = element("td", {}, value.toFixed(3));
  const percent = Math.round(60 * Math.max(value / highest, 0));
  cell.style.background = `color-mix(in srgb, var(--strong) ${percent}%, transparent)`;
  return cell;
}

/** The cosines of all pairs of vectors `[n, size]`, as a table coloured by their value. */
export function similarities(names, output) {
  const vectors = rowsOf(output);
  const norms = vectors.map((vector) => Math.sqrt(dot(vector, vector)));
  const rows = vectors.map((a, i) => element("tr", {}, element("th", {}, names[i]),
    ...vectors.map((b, j) => cellOf(dot(a, b) / (norms[i] * norms[j])))));
  return [element("p", { className: "note" }, `${output.shape[1]} dimensions; cosines:`),
    element("table", {}, ...rows)];
}

/** The tokens with the largest weights of each text; `indices` are rows of text and token id. */
function sparseVectors(names, { indices, values, tokens }) {
  const weights = names.map(() => []);
  values.data.forEach((value, i) => weights[indices.data[2 * i]].push([tokens.data[i], value]));
  const highest = Math.max(...values.data);
  return weights.flatMap((row, i) => {
    const shown = row.sort((a, b) => b[1] - a[1]).slice(0, NUM_TOKENS);
    return [element("p", { className: "note" }, `${names[i]}: ${shown.length} of ${row.length} weights`),
      scoreTable(shown, highest)];
  });
}

/**
 * The dot products of a query's tokens with a document's, a row for each token of the query. The
 * highest of each row is marked; their sum is the score (MaxSim, Khattab and Zaharia 2020).
 */
function tokenSimilarities(query, document) {
  const vectors = rowsOf(query.token_embeddings), others = rowsOf(document.token_embeddings);
  let score = 0;
  const rows = vectors.map((vector, i) => {
    const products = others.map((other) => dot(vector, other));
    const highest = Math.max(...products);
    score += highest;
    const cells = products.map((product) => cellOf(product));
    cells[products.indexOf(highest)].classList.add("highest");
    return element("tr", {}, element("th", {}, query.tokens.data[i]), ...cells);
  });
  const head = element("tr", {}, element("th"), ...document.tokens.data.map((token) => (
    element("th", {}, token))));
  return [
    element("p", { className: "note" }, `Score ${score.toFixed(3)}: the sum of each row's highest.`),
    element("div", { className: "wide" }, element("table", {}, head, ...rows)),
  ];
}

const parameters = (input_type) => ({ task: "embed", ...(input_type ? { input_type } : {}) });

/** As the other tasks in `tasks.js`, for dense and for sparse vectors. */
export const embed = {
  title: "Embed",
  fields: {
    text: texts("Texts, one per line", "a cat\na kitten\na truck"),
    input_type: { label: "Read as", options: ["", "query", "document"] },
  },
  request: (model, { text, input_type }) => (
    inferRequest(model.id, { text_input: lines(text) }, parameters(input_type))),
  show: (outputs, { text }) => (outputs.embedding_output
    ? similarities(lines(text), outputs.embedding_output) : sparseVectors(lines(text), outputs)),
};

const LONG = { long_input: "truncate_right" };

/** The same for models with a vector for each token. `next`: the request for the document. */
export const lateInteraction = {
  title: "Embed",
  fields: {
    query: { label: "Query", value: "a small pet" },
    document: texts("Document", "She keeps a goldfish in the kitchen."),
  },
  request: (model, { query, document }) => ({
    ...inferRequest(model.id, { text_input: [query] }, { ...parameters("query"), ...LONG }),
    next: inferRequest(model.id, { text_input: [document] }, { ...parameters("document"), ...LONG }),
  }),
  stream: async (request, output, signal) => {
    const [query, document] = await Promise.all([infer(request, signal), infer(request.next, signal)]);
    output.append(...tokenSimilarities(query, document));
  },
};
