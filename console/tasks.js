// A form for each task: what it asks for, what it sends, and how it shows the answer.

import { curl, events, infer, inferRequest } from "./api.js";
import { element, labelled, lines, marked, scoreTable, texts } from "./elements.js";
import { embed, lateInteraction, similarities } from "./embeddings.js";
import { pictureField } from "./pictures.js";
import { recordingField } from "./recordings.js";
import { transcribe } from "./transcribe.js";

const pictures = (label, properties) => (
  { label, type: "file", accept: ".png,.jpg,.jpeg,.webp,.gif,.bmp", ...properties });
const number = (label, value, step = 1) => ({ label, value, type: "number", step, min: 0 });

/** The rows of `[index, start, end]` in the output `spans`, as `{start, end}` by order. */
function places({ data }) {
  return Array.from({ length: data.length / 3 }, (_, i) => (
    { start: data[3 * i + 1], end: data[3 * i + 2], index: i }));
}

/** The tensor of labels that are separated by commas, if there are any. */
function candidates(text) {
  const names = text.split(",").map((name) => name.trim()).filter(Boolean);
  return names.length > 0 ? { candidate_labels: names } : {};
}

function streamRequest(model, values, options) {
  const path = `/v2/models/${encodeURIComponent(model.id)}/generate_stream`;
  return { path, body: { text_input: values.text, parameters: options } };
}

/** Shows a streamed text as it comes. */
async function showStream(request, output, signal) {
  for await (const event of events(request, signal)) output.append(event.text_output);
}

/**
 * Each task: its title, its fields, `request(model, values, history)` and either
 * `show(outputs, values)`, which returns nodes, or `stream(request, output, signal)`. The history of a
 * conversation has its messages.
 */
export const TASKS = {
  generate: {
    title: "Generate",
    fields: {
      text: texts("Text to continue", "The three kinds of Transformer are"),
      max_new_tokens: number("Tokens", 64),
      temperature: number("Temperature", 0, 0.1),
    },
    request: (model, { text, max_new_tokens, temperature }) => (
      streamRequest(model, { text }, { max_new_tokens, temperature })),
    stream: showStream,
  },
  chat: {
    title: "Chat",
    isConversation: true,
    fields: {
      text: texts("Message", "Why is the sky blue?"),
      max_tokens: number("Tokens", 128),
      temperature: number("Temperature", 0, 0.1),
    },
    request: (model, { text, max_tokens, temperature }, history) => ({
      path: "/v1/chat/completions",
      body: {
        model: model.id, messages: [...history, { role: "user", content: text }],
        max_tokens, temperature, stream: true,
      },
    }),
    stream: async (request, output, signal) => {
      for await (const { choices } of events(request, signal)) {
        for (const { delta } of choices) output.append(delta.content ?? "");
      }
    },
  },
  translate: {
    title: "Translate",
    fields: {
      text: texts("Text", "The children were playing in the garden."),
      source_language: { label: "From (code, if the model has several)", value: "" },
      target_language: { label: "To (code, if the model has several)", value: "" },
    },
    request: (model, { text, source_language, target_language }) => streamRequest(model, { text }, {
      ...(source_language ? { source_language } : {}),
      ...(target_language ? { target_language } : {}),
    }),
    stream: showStream,
  },
  embed,
  rerank: {
    title: "Rerank",
    fields: {
      query: { label: "Query", value: "a small pet" },
      passages: texts("Passages, one per line", "a kitten\na truck\na goldfish"),
    },
    request: (model, { query, passages }) => (
      inferRequest(model.id, { query: [query], passages: lines(passages) })),
    show: ({ scores }, { passages }) => {
      const rows = lines(passages).map((passage, i) => [passage, scores.data[i]]);
      return [scoreTable(rows.sort((a, b) => b[1] - a[1]), Math.max(1, ...scores.data))];
    },
  },
  classify: {
    title: "Classify",
    fields: {
      text: texts("Text", "a fast web server with support for TLS"),
      top_k: number("Labels", 5),
      candidate_labels: { label: "Other labels, by commas (for models of inference)", value: "" },
    },
    request: (model, { text, top_k, candidate_labels }) => {
      const inputs = { text_input: [text], ...candidates(candidate_labels) };
      return inferRequest(model.id, inputs, { top_k });
    },
    show: ({ labels, scores }) => [scoreTable(labels.data.map((label, i) => [label, scores.data[i]]))],
  },
  tag: {
    title: "Tag",
    fields: {
      text: texts("Text", "My name is John Smith and I live in Lisbon."),
      candidate_labels: { label: "Labels to find, by commas (for models without their own)", value: "" },
    },
    request: (model, { text, candidate_labels }) => (
      inferRequest(model.id, { text_input: [text], ...candidates(candidate_labels) })),
    show: ({ labels, scores, spans }, { text }) => [marked(text, places(spans).map((place) => (
      { ...place, make: (part) => element("mark", { title: scores.data[place.index].toFixed(3) },
        part, element("small", {}, labels.data[place.index])) })))],
  },
  fill_mask: {
    title: "Fill mask",
    fields: {
      text: texts("Text with [MASK] or the model's own mask", "Paris is the [MASK] of France."),
      top_k: number("Tokens", 5),
    },
    request: (model, { text, top_k }) => inferRequest(model.id, { text_input: [text] }, { top_k }),
    show: ({ tokens: { data, shape: [count, k] }, scores }) => Array.from({ length: count }, (_, i) => (
      scoreTable(data.slice(i * k, (i + 1) * k).map((token, j) => [token, scores.data[i * k + j]])))),
  },
  answer: {
    title: "Answer",
    fields: {
      question: { label: "Question", value: "Where does Anna live?" },
      context: texts("Text with the answer", "Anna has lived in Lisbon for three years."),
    },
    request: (model, { question, context }) => (
      inferRequest(model.id, { question: [question], context: [context] })),
    show: ({ answers, scores }) => [scoreTable(answers.data.map((text, i) => [text, scores.data[i]]))],
  },
  correct: {
    title: "Correct",
    fields: { text: texts("Text", "She have went to there house.") },
    request: (model, { text }) => inferRequest(model.id, { text_input: [text] }, {},
      ["text_output", "spans", "replacements"]),
    show: ({ text_output, spans, replacements }, { text }) => [
      element("p", {}, text_output.data[0]),
      marked(text, places(spans).map((place) => ({ ...place, make: (part) => element("span", {},
        element("del", {}, part), element("ins", {}, replacements.data[place.index])) }))),
    ],
  },
  transcribe,
};

const IMAGE_FIELDS = { image_input: pictures("Picture"), top_k: number("Labels", 5) };

/** The tasks of models of images, as above. */
const IMAGE_TASKS = {
  generate: {
    title: "Generate",
    fields: { image_input: pictures("Picture"), max_new_tokens: number("Tokens", 64) },
    request: (model, { image_input, max_new_tokens }) => (
      inferRequest(model.id, { image_input }, { max_new_tokens })),
    show: ({ text_output }) => [element("p", {}, text_output.data[0])],
  },
  embed: {
    title: "Embed",
    fields: { image_input: pictures("Pictures", { multiple: true }) },
    request: (model, values) => inferRequest(model.id, values, { task: "embed" }),
    show: ({ embedding_output }, { image_input }) => (
      similarities(image_input.map(({ name }) => name), embedding_output)),
  },
  classify: {
    title: "Classify",
    fields: IMAGE_FIELDS,
    request: (model, { image_input, top_k }) => inferRequest(model.id, { image_input }, { top_k }),
    show: TASKS.classify.show,
  },
};
/** The task of classifiers of recordings. */
const CLASSIFY_RECORDING = {
  title: "Classify",
  fields: {
    audio_input: { label: "Recording", type: "recording", isEncoded: true },
    top_k: number("Labels", 5),
  },
  request: (model, { audio_input, top_k }) => (
    inferRequest(model.id, { audio_input: audio_input ? [audio_input] : [] }, { top_k })),
  show: TASKS.classify.show,
};
/** The task of models of texts with images. */
const TEXT_AND_IMAGE = {
  title: "Classify",
  fields: { text: texts("Text", "Is there a cat?"), ...IMAGE_FIELDS },
  request: (model, { text, image_input, top_k }) => (
    inferRequest(model.id, { text_input: [text], image_input }, { top_k })),
  show: TASKS.classify.show,
};

function taskOf(model, name) {
  if (name === "embed" && model.embedding?.kind === "multi_vector") return lateInteraction;
  if (model.audio && name === "classify") return CLASSIFY_RECORDING;
  if (!model.image || model.kind === "decoder") return TASKS[name];
  return model.image.with_text ? TEXT_AND_IMAGE : IMAGE_TASKS[name];
}

function control({ rows, label, options, ...properties }, name) {
  if (options) {
    return labelled(label, element("select", { name }, ...options.map((value) => element("option", {}, value))));
  }
  if (properties.type === "recording") return recordingField(label, { name });
  if (properties.type === "file") return labelled(label, pictureField({ name, ...properties }));
  return labelled(label, rows === undefined
    ? element("input", { name, ...properties })
    : element("textarea", { name, rows, ...properties }));
}

/** The form of a model's task. Its method `stop` aborts the call that runs, if one does. */
export function taskForm(model, name) {
  const task = taskOf(model, name);
  const wide = Object.entries(task.fields).filter(([, field]) => field.rows !== undefined);
  const narrow = Object.entries(task.fields).filter(([, field]) => field.rows === undefined);
  const button = element("button", {}, "Run");
  const output = element("div", { className: "output" });
  const note = element("p", { className: "note" });
  const command = element("pre");
  const form = element("form", { className: "task" },
    ...wide.map(([key, field]) => control(field, key)),
    element("div", { className: "row" }, ...narrow.map(([key, field]) => control(field, key))),
    button, note, output,
    element("details", {}, element("summary", {}, "The same from a shell"), command));
  const history = [];
  let running = null;  // aborts the call

  function valueOf(key, { type, isEncoded }) {
    const { value, checked, pictures: chosen, recording, encoded } = form.elements[key];
    if (type === "file") return chosen;
    if (type === "recording") return isEncoded ? encoded : recording;
    if (type === "checkbox") return checked;
    return type === "number" ? Number(value) : value;
  }

  function values() {
    return Object.fromEntries(Object.entries(task.fields).map(([key, field]) => (
      [key, valueOf(key, field)])));
  }

  function showCommand() {
    const request = task.request(model, values(), history);
    command.textContent = [request, request.next].filter(Boolean).map(curl).join("\n");
  }

  /** Adds a message and its answer to the conversation. */
  async function converse(request) {
    const answer = element("div", { className: "message" });
    const message = request.body.messages.at(-1);
    output.append(element("div", { className: "message user" }, message.content), answer);
    await task.stream(request, answer, running.signal);
    history.push(message, { role: "assistant", content: answer.textContent });
    showCommand();
  }

  async function run() {
    const given = values();
    const request = task.request(model, given, history);
    const started = performance.now();
    running = new AbortController();
    button.textContent = "Stop";
    note.className = "note";
    note.textContent = "";
    if (!task.isConversation) output.replaceChildren();
    try {
      if (task.isConversation) await converse(request);
      else if (task.stream) await task.stream(request, output, running.signal);
      else output.append(...task.show(await infer(request, running.signal), given));
      note.textContent = `${Math.round(performance.now() - started)} ms`;
    } catch (error) {
      const isStopped = error.name === "AbortError";
      note.className = isStopped ? "note" : "error";
      note.textContent = isStopped ? "Stopped." : error.message;
    }
    running = null;
    button.textContent = "Run";
  }

  form.stop = () => running?.abort();
  form.oninput = showCommand;
  form.onsubmit = (event) => {
    event.preventDefault();
    if (running) form.stop();
    else run();
  };
  showCommand();
  return form;
}
