// Runs the playground's script on a page of stubs; prints what its panels show as JSON. The script is beside this file.

class Element {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], clientWidth: 500, scrollWidth: 400, dataset: {} });
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  removeAttribute(name) { delete this.attributes[name]; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...others) { this.children = others; }
  hasChildNodes() { return this.children.length > 0; }
  getContext() { return { measureText: (text) => ({ width: 7 * text.length }) }; }
  get textContent() { return this.children.map((one) => one.textContent ?? one).join(""); }
  set textContent(text) { this.children = [text]; }
  get value() { return this.typed ?? this.attributes.value ?? this.children[0]?.value ?? this.textContent; }
  set value(text) { this.typed = String(text); }
}

const parts = Object.fromEntries(["model", "key", "language", "about", "panels"].map((id) => [id, new Element(id)]));
Object.assign(globalThis, {
  document: {
    createElement: (name) => new Element(name),
    createElementNS: (space, name) => new Element(name),
    getElementById: (id) => parts[id],
    querySelector: () => null,
    querySelectorAll: () => [],
    documentElement: new Element("html"),
  },
  ResizeObserver: class { observe() {} },
  location: { origin: "http://localhost" },
});
console.error = () => {};

const token = { id: 5, text: "a", special: false, start: 0, stop: 1 };
const about = { model_id: "en", system: "bert", task: "pretraining", abilities: ["embed", "fill-mask"], layers: 2, vocabulary_size: 9 };
const guess = { index: 0, how: "mask", shown: "[MASK]", probability: 0.5, candidates: [{ token_str: "a", score: 0.5 }] };
const held = [];
let down = "", refused = "", waiting = null;

globalThis.fetch = async (path, options) => {
  const found = (value) => ({ ok: true, status: 200, json: async () => value });
  if (down === "gone") throw new TypeError("fetch failed");
  if (down === "proxy") return { ok: false, status: 502, json: async () => JSON.parse("<html>") };
  if (path === "/v1/models") return found({ data: [{ id: "en" }] });
  if (path.endsWith("/info")) {
    if (waiting) await waiting;
    if (refused && path.includes(`/${refused}/`)) return { ok: false, status: 429, json: async () => ({ error: `no ${refused}` }) };
    return found(about);
  }
  if (path.endsWith("/masking")) return found({ tokens: [token], masked: [guess] });
  if (path.endsWith("/fill-mask")) {
    return new Promise((answer) => held.push({ dropped: () => options.signal.aborted, answer: (text) => answer(found([{ token_str: text, score: 0.5 }])) }));
  }
  return found(JSON.parse(options.body).inputs.map(() => [token]));
};

await import("./playground.js");
while (!parts.panels.children.length) await new Promise((next) => setTimeout(next, 1));
const panel = (name) => {
  const [, , form, answer, details] = parts.panels.children.find((one) => one.attributes["data-panel"] === name).children;
  return { form, answer, details, run: () => form.onsubmit({ preventDefault() {} }) };
};
const shown = {};

const masking = panel("masking");
await masking.run();
shown.seed_of_the_command = /"seed":(\d+)/.exec(masking.details.textContent)[1];
shown.seed_of_the_next = masking.form.children[2].children[1].value;

const masks = panel("masks");
const first = masks.run(), second = masks.run();
held[1].answer("second");
await second;
shown.dropped = held.map((one) => one.dropped());
held[0].answer("first");
await first;
shown.answer = masks.answer.textContent;

for (down of ["gone", "proxy"]) {
  await masks.run();
  shown[down] = masks.answer.textContent;
}

// A model that is refused leaves no panel of another one; a refusal that comes late says nothing of the next choice.
down = "";
const settled = () => new Promise((next) => setTimeout(next));
refused = parts.model.value = "ko";
parts.model.onchange();
await settled();
shown.refused = [parts.about.textContent, parts.panels.children.length];
let go;
waiting = new Promise((next) => { go = next; });
parts.model.onchange();
waiting = null;
parts.model.value = "en";
parts.model.onchange();
await settled();
go();
await settled();
shown.chosen = [parts.about.textContent.includes("ko"), parts.panels.children.length > 0];
console.log(JSON.stringify(shown));
