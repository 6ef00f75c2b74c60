// Runs the console without a browser, before a server whose streams do not end.
// Prints, as JSON, whether calls end when the user stops or leaves them, and unhandled errors.

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], style: {}, classList: { add() {} } });
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute() {}
  get firstChild() { return this.children[0]; }
  get elements() {
    const found = {};
    const visit = ({ children = [] }) => children.forEach((child) => {
      if (child.name) found[child.name] = child;
      visit(child);
    });
    visit(this);
    return found;
  }
}

const byId = {}, signals = [], unhandled = [];
const model = (id) => ({ id, kind: "decoder", tasks: ["generate"], max_model_len: 8 });
const answers = { "/v1/models": { data: [model("a"), model("b")] } };

/** The first event of a stream that only ends when it is aborted. */
function endless(signal) {
  return new ReadableStream({
    start(controller) {
      signal.addEventListener("abort", () => controller.error(signal.reason));
      controller.enqueue(new TextEncoder().encode('data: {"text_output": "x"}\n\n'));
    },
  });
}

Object.assign(globalThis, {
  document: {
    hidden: true,
    createElement: (tag) => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    getElementById: (id) => (byId[id] ??= new Element(id)),
  },
  location: { origin: "" },
  sessionStorage: { getItem: () => null },
  setInterval: () => 0,
  fetch: async (path, { signal }) => {
    if (path in answers) return { ok: true, json: async () => answers[path] };
    signals.push(signal);
    return { ok: true, body: endless(signal) };
  },
});
process.on("unhandledRejection", (error) => unhandled.push(error.name));
await import("./console.js");

const form = () => byId.task.children[2].firstChild;
const child = (name) => form().children.find(({ className, tag }) => name === (className ?? tag));
const submit = () => form().onsubmit({ preventDefault() {} });

async function until(condition) {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

/** Starts a call and waits for its first text. */
async function start() {
  submit();
  await until(() => child("output").children.length > 0);
}

await start();
submit();  // its button says "Stop"
await until(() => child("button").textContent === "Run");
await start();
byId.task.children[1].children[1].onclick();  // another task
await start();
byId.models.children[1].onclick();  // another model
await new Promise((resolve) => setTimeout(resolve));  // unhandled errors are reported before this
console.log(JSON.stringify({ aborted: signals.map((signal) => signal.aborted), unhandled }));
