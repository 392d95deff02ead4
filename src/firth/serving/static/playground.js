// What the models of this server do, panel by panel. Nothing is loaded from elsewhere.

import { answer, attention, bars, choose, cross, entities, examples, hidden, input, is_unknown, layers, learn, lines, make,
  masking, masks, next, similar, tokens, value, write } from "./drawings.js";
import { EXAMPLES, change_language, hint, language, say } from "./words.js";

// Fields that are numbers.
const NUMBERS = {
  share: { min: 0.01, max: 0.9, step: 0.01, value: 0.15 },
  seed: { min: 0, max: 999999, step: 1, value: 1 },
};
// Fields that are called as others are.
const LABELS = { mask: "text", named: "text", sentences: "texts", next: "second" };
const ROWS = { texts: 3, sentences: 4, examples: 8, choices: 3 };

const byId = (id) => document.getElementById(id);

function headers() {
  const key = byId("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

// What the server says of a request; other errors are of the connection, and their words are the browser's.
class Refusal extends Error {}

// What the server refuses, in the words of its protocol; a key is typed here, not sent as a header by hand.
async function refusal(response) {
  const found = await response.json();
  return new Refusal(response.status === 401 ? say("locked") : found.error?.message ?? found.error);
}

function words_of(error) {
  if (error instanceof Refusal) return error.message;
  console.error(error);
  return say("failed");
}

async function ask(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), signal };
  const response = await fetch(path, { ...options, headers: headers() });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// The events of an answer that comes in parts: `heard` is called with all that are there, after each.
async function listen(path, body, signal, heard) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify(body), headers: headers(), signal });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), events = [];
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    const found = parts.filter((part) => part !== "data: [DONE]").map((part) => JSON.parse(part.slice("data: ".length)));
    events.push(...found.filter((event) => !event.error));
    heard(events);
    for (const { error } of found) if (error) throw new Refusal(error);
  }
}

// What a model of labels or values reads: one text, two, or either where its folder does not say.
const texts_of = (m) => (m.pairs === false ? ["text"] : ["text", m.pairs ? "next" : "second"]);
const text_or_pair = (f) => ({ inputs: f.next || f.second ? [f.text, f.next || f.second] : f.text });

// What a panel needs of the model, its fields, its request, and how its answer is shown.
const PANELS = [
  { name: "tokens", needs: (m) => m.abilities.includes("embed"), fields: ["text"], path: "/tokenize",
    body: (f) => ({ inputs: f.text }), show: tokens },
  { name: "input", needs: (m) => m.system === "bert", fields: (m) => (m.apart ? ["text"] : ["text", "next"]),
    path: "/tokenize", body: (f) => ({ inputs: f.next ? [f.text, f.next] : f.text }), show: input },
  { name: "masking", needs: (m) => m.abilities.includes("fill-mask"), fields: ["text", "share", "seed"], path: "/masking",
    body: (f) => ({ inputs: f.text, share: Number(f.share), seed: Number(f.seed) }), show: masking },
  { name: "masks", needs: (m) => m.abilities.includes("fill-mask"), fields: ["mask"], path: "/pipeline/fill-mask",
    body: (f) => ({ inputs: f.mask }), show: masks },
  { name: "next", needs: (m) => m.abilities.includes("follow"), fields: ["text", "next"], path: "/next_sentence",
    body: (f) => ({ inputs: f.text, second: f.next }), show: next },
  { name: "labels", needs: (m) => ["classify", "multilabel"].includes(m.task), fields: texts_of, path: "/predict",
    body: text_or_pair, show: bars },
  { name: "value", needs: (m) => m.task === "regress", fields: texts_of, path: "/predict",
    body: text_or_pair, show: value },
  { name: "entities", needs: (m) => m.task === "tag", fields: ["named"], path: "/pipeline/token-classification",
    body: (f) => ({ inputs: f.named }), show: entities },
  { name: "answer", needs: (m) => m.task === "answer", fields: ["question", "context"],
    path: "/pipeline/question-answering",
    body: (f) => ({ inputs: { question: f.question, context: f.context } }), show: answer },
  { name: "choose", needs: (m) => m.task === "choose", fields: ["context", "question", "choices"],
    path: "/pipeline/multiple-choice",
    body: (f) => ({ inputs: { text: f.context, question: f.question, choices: lines(f.choices) } }), show: choose },
  { name: "write", needs: (m) => m.abilities.includes("generate"), fields: ["text"], path: "/pipeline/text-generation",
    body: (f) => ({ inputs: f.text, parameters: { max_new_tokens: 30 } }), show: write },
  { name: "cross", needs: (m) => m.abilities.includes("cross-attention"), fields: ["text", "target"],
    path: "/cross_attention", body: (f) => ({ inputs: f.text, ...(f.target ? { target: f.target } : {}) }), show: cross },
  { name: "attention", needs: (m) => m.abilities.includes("attention"),
    fields: (m) => (m.apart ? ["text"] : ["text", "second"]), path: "/attention",
    body: (f) => ({ inputs: f.text, ...(f.second ? { second: f.second } : {}) }), show: attention },
  { name: "hidden", needs: (m) => m.abilities.includes("embed"), fields: ["sentences", "word"], path: "/hidden_states",
    body: (f) => ({ inputs: lines(f.sentences) }), show: hidden },
  { name: "nearest", needs: (m) => m.abilities.includes("find-nearest"), fields: ["alone"], path: "/nearest",
    body: (f) => ({ inputs: f.alone.trim() }), show: bars },
  { name: "learn", needs: (m) => m.abilities.includes("embed"), fields: ["examples"], path: "/learn",
    body: (f) => examples(f.examples), show: learn, parts: true },
  { name: "layers", needs: (m) => m.layers > 0, fields: ["examples"], path: "/probe",
    body: (f) => examples(f.examples), show: layers, parts: true },
  { name: "similar", needs: (m) => m.abilities.includes("embed"), fields: ["text", "texts"], path: "/similarity",
    body: (f) => ({ inputs: { source_sentence: f.text, sentences: lines(f.texts) } }), show: similar },
];

function field_of(field, example) {
  if (NUMBERS[field]) return make("input", { type: "number", ...NUMBERS[field] });
  if (field === "word" || field === "alone") return make("input", { value: example });
  return make("textarea", { rows: ROWS[field] ?? 2 }, example);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function panel(about, given_examples, { name, fields: fields_of, path, body, show, parts }) {
  const url = `/models/${encodeURIComponent(about.model_id)}${path}`, inputs = {};
  const fields = typeof fields_of === "function" ? fields_of(about) : fields_of;
  const form = make("form", {});
  for (const field of fields) {
    inputs[field] = field_of(field, given_examples[field] ?? given_examples.text);
    form.append(make("label", {}, say(LABELS[field] ?? field), inputs[field]));
  }
  const found = make("div", { class: "answer", "aria-live": "polite", role: "region", "aria-label": say(name) });
  const curl = make("pre");
  // What is wider than its panel is scrolled with the keyboard too.
  const reach = () => {
    if (found.scrollWidth > found.clientWidth) found.tabIndex = 0;
    else found.removeAttribute("tabindex");
  };
  new ResizeObserver(reach).observe(found);
  const given = () => Object.fromEntries(fields.map((field) => [field, inputs[field].value]));
  const show_curl = (sent) => {
    const data = quoted(JSON.stringify(sent));
    // A key stays out of what is copied and shown: the shell has it in a variable.
    const key = byId("key").value ? ' -H "authorization: Bearer $FIRTH_API_KEY"' : "";
    curl.textContent = `curl ${location.origin}${url} -H "content-type: application/json"${key} -d ${data}`;
  };
  form.oninput = () => show_curl(body(given()));
  show_curl(body(given()));
  // Of several runs the last one is shown; the server drops the others.
  let last = new AbortController();
  const button = make("button", { type: "submit" }, say("run"));
  form.append(button);
  form.onsubmit = async (event) => {
    event.preventDefault();
    last.abort();
    const mine = last = new AbortController();
    const values = given(), sent = body(values);
    found.setAttribute("aria-busy", "true");
    button.textContent = say("busy");
    if (parts) found.replaceChildren();
    try {
      if (parts) {
        await listen(url, sent, mine.signal, (events) => mine === last && found.replaceChildren(...show(events)));
      } else {
        const answered = await ask(url, sent, mine.signal);
        if (mine !== last) return;
        found.replaceChildren(...show(answered, values, inputs, about));
      }
      if (!found.hasChildNodes()) found.replaceChildren(make("p", {}, say("none")));
      show_curl(sent);
    } catch (error) {
      if (mine !== last) return;
      const wrong = make("p", { class: "wrong" }, words_of(error));
      if (parts) found.append(wrong);
      else found.replaceChildren(wrong);
    }
    button.textContent = say("run");
    found.setAttribute("aria-busy", "false");
    reach();
  };
  const details = make("details", {}, make("summary", {}, say("curl")), curl);
  return make("section", { "data-panel": name }, make("h2", {}, say(name)), make("p", { class: "note" }, hint(name)),
    form, found, details);
}

// The examples in the language that the model was made for: of its tokens each covers the most bytes of text there.
// Where neither language is clearly better, that of the page.
async function examples_of(about) {
  if (!about.abilities.includes("embed")) return EXAMPLES[language];
  const others = Object.keys(EXAMPLES).filter((other) => other !== language);
  const languages = [language, ...others], texts = languages.map((one) => EXAMPLES[one].text);
  const rows = await ask(`/models/${encodeURIComponent(about.model_id)}/tokenize`, { inputs: texts });
  const bytes_of = (text) => new TextEncoder().encode(text).length;
  const read = rows.map((row, i) => {
    const own = row.filter((token) => !token.special), characters = Array.from(texts[i]);
    const known = own.filter((token) => !is_unknown(token, about));
    const bytes = known.map((token) => bytes_of(characters.slice(token.start, token.stop).join("")));
    return bytes.reduce((sum, n) => sum + n, 0) / Math.max(own.length, 1);
  });
  const best = read.indexOf(Math.max(...read));
  return EXAMPLES[languages[read[best] > 1.3 * read[0] ? best : 0]];
}

async function show_model() {
  const name = byId("model").value;
  // Another one may be chosen meanwhile.
  const is_chosen = () => byId("model").value === name;
  let about, given_examples;
  try {
    about = await ask(`/models/${encodeURIComponent(name)}/info`);
    given_examples = await examples_of(about);
  } catch (error) {
    if (!is_chosen()) return;
    byId("panels").replaceChildren();
    throw error;
  }
  if (!is_chosen()) return;
  const facts = [`${say("system")}: ${about.system}`, `${say("task")}: ${about.task}`];
  if (about.layers) facts.push(`${say("depth")}: ${about.layers}`);
  if (about.max_input_length) facts.push(`${say("reads")}: ${about.max_input_length}`);
  byId("about").textContent = facts.join(" · ");
  byId("panels").replaceChildren(
    ...PANELS.filter((one) => one.needs(about)).map((one) => panel(about, given_examples, one)));
}

async function begin() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-say]")) node.textContent = say(node.dataset.say);
  byId("language").textContent = say("other");
  byId("language").lang = language === "en" ? "ko" : "en";
  const models = (await ask("/v1/models")).data.map((one) => one.id), chosen = byId("model").value;
  byId("model").replaceChildren(...models.map((name) => make("option", { value: name }, name)));
  if (models.includes(chosen)) byId("model").value = chosen;
  await show_model();
}

const told = (work) => work().catch((error) => {
  byId("about").textContent = words_of(error);
});

byId("model").onchange = () => told(show_model);
byId("key").onchange = () => told(begin);
byId("language").onclick = () => {
  change_language();
  told(begin);
};
told(begin);
