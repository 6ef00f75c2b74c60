// Calls to the server's HTTP port, at the address of this page.

import { EncodedFile } from "./pictures.js";

/** The server needs a token, or rejects the one that it got. */
export class TokenNeeded extends Error {}

/** Remembers a token until the tab is closed. */
export function useToken(token) {
  sessionStorage.setItem("token", token);
}

function headersOf(body) {
  const token = sessionStorage.getItem("token");
  const isJson = body !== undefined && !(body instanceof FormData);  // the browser names a form
  return {
    ...(token ? { authorization: `Bearer ${token}` } : {}),
    ...(isJson ? { "content-type": "application/json" } : {}),
  };
}

/** Calls the server: GET, or POST with a body, JSON or a form. Throws its message if it answers with an error. */
async function call(path, body, signal) {
  const response = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: headersOf(body),
    body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
    signal,
  });
  if (response.status === 401) throw new TokenNeeded("The server needs a valid token.");
  if (!response.ok) throw new Error(messageOf(await response.text()) || `HTTP ${response.status}`);
  return response;
}

function messageOf(text) {
  try {
    const { error } = JSON.parse(text);
    return error.message ?? error;
  } catch {
    return text;
  }
}

/** All served models: `{id, kind, tasks, max_model_len, embedding, image, audio}`; the last three if any. */
export async function listModels() {
  return (await (await call("/v1/models")).json()).data;
}

/** The metrics, in Prometheus's text format. */
export async function readMetrics() {
  return (await call("/metrics")).text();
}

/** A request of the Open Inference Protocol: texts or pictures by input, options, wanted outputs. */
export function inferRequest(model, values, parameters = {}, outputs = []) {
  const inputs = Object.entries(values).map(([name, data]) => (
    { name, datatype: "BYTES", shape: [data.length], data }));
  const body = { inputs, parameters };
  if (outputs.length > 0) body.outputs = outputs.map((name) => ({ name }));
  return { path: `/v2/models/${encodeURIComponent(model)}/infer`, body };
}

/** Sends a request. Returns its outputs by name, each `{shape, data}`. */
export async function infer({ path, body }, signal) {
  const { outputs } = await (await call(path, body, signal)).json();
  return Object.fromEntries(outputs.map((output) => [output.name, output]));
}

/** Sends a request, and yields the objects of the answer's server-sent events. */
export async function* events({ path, body }, signal) {
  const response = await call(path, body, signal);
  let rest = "";
  for await (const text of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message ?? event.error);
      yield event;
    }
  }
}

async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    // Ends the call if the reader stops early; rejected if the call was aborted.
    reader.cancel().catch(() => {});
  }
}

/** The same request as a shell command, which reads pictures and recordings from their files. */
export function curl({ path, body }) {
  if (body instanceof FormData) return curlOfForm(path, body);
  const names = [];
  const data = JSON.stringify(body, function shorten(key, value) {
    return this[key] instanceof EncodedFile ? `\0${names.push(this[key].name) - 1}\0` : value;
  });
  const start = `curl ${location.origin}${path} -H 'content-type: application/json' -d`;
  if (names.length === 0) return `${start} ${quoted(data)}`;
  // A backslash in a text is two in JSON, so none of them begins \u0000.
  const document = data.replace(/\\\\|\\u0000(\d+)\\u0000|[$`\\]/g, (found, index) => (
    index === undefined ? found.replace(/[$`\\]/g, "\\$&")
      : `$(base64 < ${quoted(names[index])} | tr -d '\\n')`));
  return `${start} @- <<END\n${document}\nEND`;
}

function curlOfForm(path, form) {
  const fields = [...form].map(([name, value]) => (value instanceof File
    ? `-F ${quoted(`${name}=@"${value.name.replace(/["\\]/g, "\\$&")}"`)}`
    : `--form-string ${quoted(`${name}=${value}`)}`));
  return [`curl ${location.origin}${path}`, ...fields].join(" ");
}

/** `text` as one word of a shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
