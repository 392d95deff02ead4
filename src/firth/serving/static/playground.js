// What the models of this server do, panel by panel. Nothing is loaded from elsewhere.

const WORDS = {
  en: {
    model: "Model", key: "API key", run: "Run", text: "Text", second: "Second text", question: "Question",
    context: "Context", texts: "Texts, one per line", layer: "Layer", head: "Head", curl: "The same with curl",
    none: "nothing found", tokens: "Tokens", labels: "Labels", masks: "Fill in the mask", entities: "Named entities",
    answer: "Answer in the context", attention: "Attention", similar: "Nearest texts", other: "한국어",
    write: "Continue a text", failed: "No answer from the server", masking: "Masks of pre-training", share: "Share",
    seed: "Seed", mask: "masked", random: "replaced", kept: "kept", hidden: "Hidden states, layer by layer",
    word: "Word to compare", cosine: "Cosines of the word's vectors", once: "The word does not occur twice",
    accuracy: "Correct predictions", input: "The sum that BERT reads", token: "token", segment: "segment",
    position: "position", next: "Does the second text follow the first?", follows: "it follows",
    learn: "A few labels", examples: "One example per line, its label first: label: text", encoder: "this model's vectors",
    tfidf: "TF-IDF", majority: "most frequent label", correct: "correct on held-out texts", count: "examples to learn from",
    nearest: "Nearest words",
    cross: "Attention over the source of a translation", target: "Translation (empty: the model's own)",
  },
  ko: {
    model: "모델", key: "API 키", run: "실행", text: "텍스트", second: "두 번째 텍스트", question: "질문",
    context: "지문", texts: "텍스트(한 줄에 하나)", layer: "층", head: "헤드", curl: "curl 명령으로 보기",
    none: "결과 없음", tokens: "토큰", labels: "레이블", masks: "마스크 채우기", entities: "개체명",
    answer: "지문에서 찾은 답", attention: "어텐션", similar: "가장 가까운 텍스트", other: "English",
    write: "이어 쓰기", failed: "서버가 응답하지 않습니다", masking: "사전 학습의 마스킹", share: "비율",
    seed: "시드", mask: "마스크", random: "무작위 교체", kept: "유지", hidden: "층별 은닉 상태",
    word: "비교할 단어", cosine: "단어 벡터의 코사인 유사도", once: "비교하려면 단어가 두 번 이상 나와야 합니다",
    accuracy: "맞힌 토큰", input: "BERT의 입력: 임베딩의 합", token: "토큰", segment: "세그먼트",
    position: "위치", next: "두 번째 텍스트가 첫 번째에 이어집니까?", follows: "이어짐",
    learn: "적은 레이블로 학습하기", examples: "한 줄에 예시 하나(레이블: 텍스트)", encoder: "이 모델의 벡터",
    tfidf: "TF-IDF", majority: "최빈 레이블", correct: "학습에 쓰지 않은 텍스트의 정확도", count: "학습 예시 수",
    nearest: "가장 가까운 단어",
    cross: "번역문에서 원문으로 가는 어텐션", target: "번역문(비워 두면 모델이 번역)",
  },
};
const EXAMPLES = {
  en: {
    text: "The old farmer sat on the bank of the river.", mask: "The capital of France is [MASK].", second: "", target: "",
    question: "Where did the farmer sit?", texts: "He opened an account at the bank.\nThe water was cold.",
    sentences: "He sat on the bank of the river.\nThe bank lent him money.\nShe works at a bank.", word: "bank",
    next: "He was very tired.",
    examples: [
      "music: She plays the violin in an orchestra.", "music: The band recorded its first album in London.",
      "music: He is a pianist and composer.", "music: The song reached the top of the charts.",
      "music: The choir sang two hymns.", "music: Her second album was released in May.",
      "music: The opera has three acts.", "music: He taught the guitar for years.",
      "places: The village lies on the left bank of the river.", "places: It is a town in the north of Spain.",
      "places: The population of the district was 4,000.", "places: The lake is north of the mountains.",
      "places: The road leads to the harbour.", "places: The island has two small villages.",
      "places: The city is the capital of the province.", "places: The valley is known for its vineyards.",
    ].join("\n"),
  },
  ko: {
    text: "늙은 농부가 강가에 앉아 있었다.", mask: "한강은 서울을 [MASK] 강이다.", second: "", target: "",
    question: "농부는 어디에 앉아 있었나?", texts: "그는 은행에서 계좌를 만들었다.\n강물이 차가웠다.",
    sentences: "배가 항구에 들어왔다.\n배가 아파서 병원에 갔다.\n배를 타고 섬에 갔다.", word: "배",
    next: "그는 몹시 피곤했다.",
    examples: [
      "음악: 그는 피아노를 연주한다.", "음악: 이 밴드는 첫 앨범을 발표했다.", "음악: 이 노래는 큰 인기를 얻었다.",
      "음악: 합창단이 노래를 불렀다.", "음악: 그녀는 작곡가이자 가수이다.", "음악: 이 오페라는 3막으로 되어 있다.",
      "장소: 이 마을은 강가에 있다.", "장소: 이 도시는 도청 소재지이다.", "장소: 이 섬의 인구는 4,000명이다.",
      "장소: 호수는 산 북쪽에 있다.", "장소: 이 길은 항구로 이어진다.", "장소: 이 골짜기는 포도밭으로 유명하다.",
    ].join("\n"),
  },
};
// Fields that are numbers.
const NUMBERS = {
  share: { min: 0.01, max: 0.9, step: 0.01, value: 0.15 },
  seed: { min: 0, max: 999999, step: 1, value: 1 },
};

let language = "en";
const say = (word) => WORDS[language][word];
const byId = (id) => document.getElementById(id);

// An element with attributes and children; text is never read as HTML.
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "line", "polyline", "text", "circle", "title"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function headers() {
  const key = byId("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(path, { ...options, headers: headers() });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error?.message ?? found.error);
  return found;
}

// The events of an answer that comes in parts: `heard` is called with all that are there, after each.
async function listen(path, body, heard) {
  const response = await fetch(path, { method: "POST", body: JSON.stringify(body), headers: headers() });
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), events = [];
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part !== "data: [DONE]") events.push(JSON.parse(part.slice("data: ".length)));
    heard(events);
  }
}

// Offsets count characters; a string of JavaScript counts some of them twice.
function slices(text, spans) {
  const characters = Array.from(text), parts = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    parts.push(characters.slice(at, span.start).join(""));
    const note = span.note ? [" ", make("small", {}, span.note)] : [];
    parts.push(make("mark", {}, characters.slice(span.start, span.end).join(""), ...note));
    at = span.end;
  }
  return [...parts, characters.slice(at).join("")];
}

function bars(rows) {
  return rows.map(({ label, score }) =>
    make("div", { class: "bar" }, make("span", {}, label ?? "—"),
      make("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, score)), "aria-label": label ?? "—" }),
      make("span", {}, score.toFixed(3))));
}

function tokens([row]) {
  return row.map((token) => make("span", { class: token.special ? "token special" : "token" },
    token.text, " ", make("small", {}, String(token.id))));
}

// What is added for each token: three learned vectors, by the token, by its segment, and by its position.
function input([row]) {
  const line = (name, value) => make("tr", {}, make("th", { scope: "row" }, name),
    ...row.map((token, i) => make("td", {}, value(token, i))));
  return [make("table", {},
    line(say("token"), (token) => make("code", {}, token.text)),
    line("", (token) => make("small", {}, String(token.id))),
    line(`+ ${say("segment")}`, () => "A"),
    line(`+ ${say("position")}`, (_, i) => String(i)))];
}

function next(found) {
  return bars([{ label: say("follows"), score: found.probability }]);
}

// Curves over the number of examples, which doubles from point to point.
function learn(points) {
  if (!points.length) return [];
  const width = 440, height = 240, left = 40, top = 10, right = 12, bottom = 40;
  const first = Math.log2(points[0].examples), last = Math.max(Math.log2(points.at(-1).examples), first + 1);
  const x = (n) => left + (width - left - right) * (Math.log2(n) - first) / (last - first);
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": say("learn") });
  for (const share of [0, .25, .5, .75, 1]) {
    svg.append(make("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: "grid" }),
      make("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, String(share)));
  }
  for (const { examples } of points) {
    svg.append(make("text", { x: x(examples), y: height - bottom + 16, "text-anchor": "middle" }, String(examples)));
  }
  svg.append(make("text", { x: left, y: height - 6 }, `${say("count")}; ${say("correct")}`));
  ["encoder", "tfidf", "majority"].forEach((way, i) => {
    const places = points.map((point) => `${x(point.examples)},${y(point[way])}`).join(" ");
    svg.append(make("polyline", { points: places, class: `curve text${i}` }));
    for (const point of points) {
      const circle = make("circle", { cx: x(point.examples), cy: y(point[way]), r: 4, class: `point text${i}` });
      circle.append(make("title", {}, `${say(way)}: ${point[way].toFixed(2)}`));
      svg.append(circle);
    }
  });
  const best = points.at(-1);
  const keys = ["encoder", "tfidf", "majority"].map((way, i) =>
    make("span", { class: `key text${i}` }, `${say(way)} ${best[way].toFixed(2)}`));
  return [svg, make("p", {}, ...keys)];
}

// A line is an example: its label, a colon, its text.
function examples(text) {
  const rows = lines(text).map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]);
  return { texts: rows.map(([, words]) => words), labels: rows.map(([label]) => label) };
}

function masks(found) {
  const lists = Array.isArray(found[0]) ? found : [found];
  return lists.map((list) => make("div", {}, ...bars(list.map((one) => ({ label: one.token_str, score: one.score })))));
}

function entities(found, fields) {
  if (!found.length) return [say("none")];
  return slices(fields.text, found.map((one) => ({ ...one, note: `${one.entity_group} ${one.score.toFixed(2)}` })));
}

function answer(found, fields) {
  if (!found.answer) return [say("none")];
  return slices(fields.context, [{ ...found, note: found.score.toFixed(2) }]);
}

// Lines from each token on the left to those on the right that it takes from, for one head at a time.
function attention_of(rows, columns, [layers, heads], base64) {
  const weights = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const pick = (word, n) => make("select", { "aria-label": say(word) },
    ...Array.from({ length: n }, (_, i) => make("option", { value: i }, `${say(word)} ${i + 1}`)));
  const layer = pick("layer", layers), head = pick("head", heads), picture = make("div");
  const height = 20, right = 300, down = Math.max(rows.length, columns.length) * height + 8;
  const draw = () => {
    const begin = (Number(layer.value) * heads + Number(head.value)) * rows.length * columns.length;
    const svg = make("svg", { viewBox: `0 0 440 ${down}`, role: "img", "aria-label": say("attention") });
    rows.forEach((token, row) => {
      columns.forEach((_, column) => {
        const weight = weights[begin + row * columns.length + column] / 255;
        if (weight < 0.02) return;
        svg.append(make("line", { x1: 140, y1: (row + .65) * height, x2: right, y2: (column + .65) * height,
          "stroke-width": 2, "stroke-opacity": weight }));
      });
      svg.append(make("text", { x: 132, y: (row + .85) * height, "text-anchor": "end" }, token));
    });
    columns.forEach((token, column) => svg.append(make("text", { x: right + 8, y: (column + .85) * height }, token)));
    picture.replaceChildren(svg);
  };
  layer.onchange = head.onchange = draw;
  draw();
  return [layer, " ", head, picture];
}

function attention(found) {
  return attention_of(found.tokens, found.tokens, found.shape, found.weights);
}

function cross(found) {
  return [make("p", {}, found.translation), ...attention_of(found.tokens, found.source, found.shape, found.weights)];
}

function masking(found, fields, inputs) {
  const chosen = new Map(found.masked.map((one) => [one.index, one]));
  const correct = found.masked.filter((one) => one.candidates[0].token_str === found.tokens[one.index].text).length;
  const row = found.tokens.map((token, i) => {
    const one = chosen.get(i);
    if (!one) return make("span", { class: token.special ? "token special" : "token" }, token.text);
    return make("span", { class: `token ${one.how}` }, one.shown, " ", make("small", {}, `${token.text}, ${say(one.how)}`));
  });
  const guesses = found.masked.map((one) => make("div", {},
    make("p", {}, `${found.tokens[one.index].text} (${one.probability.toFixed(3)})`),
    ...bars(one.candidates.map((best) => ({ label: best.token_str, score: best.score })))));
  inputs.seed.value = Number(fields.seed) + 1; // the next run masks other tokens
  return [make("p", {}, ...row), make("p", {}, `${say("accuracy")}: ${correct} / ${found.masked.length}`), ...guesses];
}

// Numbers of 16 bits: a sign, five bits of exponent, ten of fraction.
function float16(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = view.getUint16(2 * i, true), exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits >> 15 ? -size : size;
  });
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const cosine = (a, b) => dot(a, b) / Math.max(Math.sqrt(dot(a, a) * dot(b, b)), 1e-12);

// The first two principal components of rows, by power iteration on their inner products; signs as in `before`.
function project(rows, before) {
  const mean = rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
  const centred = rows.map((row) => row.map((value, j) => value - mean[j]));
  const products = centred.map((a) => Float64Array.from(centred, (b) => dot(a, b)));
  const axes = [];
  for (let axis = 0; axis < 2; axis += 1) {
    let unit = Float64Array.from(rows, (_, i) => Math.cos(1 + i * (axis + 1))), value = 0;
    for (let step = 0; step < 100; step += 1) {
      for (const one of axes) {
        const share = dot(unit, one.unit);
        unit = unit.map((x, i) => x - share * one.unit[i]);
      }
      const next = Float64Array.from(products, (row) => dot(row, unit));
      value = Math.sqrt(dot(next, next));
      if (value < 1e-12) break;
      unit = next.map((x) => x / value);
    }
    axes.push({ unit, places: unit.map((x) => x * Math.sqrt(value)) });
  }
  return axes.map(({ places }, axis) => (before && dot(places, before[axis]) < 0 ? places.map((x) => -x) : places));
}

function hidden(found, fields) {
  const characters = found.map((_, i) => Array.from(lines(fields.sentences)[i]));
  // Special tokens lie far from all others and would leave these no room.
  const tokens = found.flatMap((one, text) => one.tokens.map((token) => ({ ...token, text_number: text })))
    .filter((token) => !token.special);
  if (!tokens.length) return [say("none")];
  const word = fields.word.trim().toLowerCase();
  const layers = found[0].layers.map((_, number) => found.flatMap((one) => {
    const [count, width] = one.layers[number].shape, all = float16(one.layers[number].states);
    return Array.from({ length: count }, (_, i) => all.subarray(i * width, (i + 1) * width))
      .filter((_, i) => !one.tokens[i].special);
  }));
  const places = [];
  for (const rows of layers) places.push(project(rows, places[places.length - 1]));
  // Where the word begins: its first token stands for it.
  const marked = tokens.flatMap((token, i) => {
    if (!word) return [];
    const rest = characters[token.text_number].slice(token.start, token.start + Array.from(word).length).join("");
    const within = token.start > 0 && /[\p{L}\p{N}]/u.test(characters[token.text_number][token.start - 1]);
    return rest.toLowerCase() === word && !within ? [i] : [];
  });
  const layer = make("input", { type: "range", min: 0, max: layers.length - 1, value: layers.length - 1, "aria-label": say("layer") });
  const number = make("output"), picture = make("div");
  const draw = () => {
    const at = Number(layer.value), [x, y] = places[at];
    number.textContent = ` ${at} / ${layers.length - 1}`;
    const fit = (values) => {
      const low = Math.min(...values), high = Math.max(...values);
      return (value) => (value - low) / Math.max(high - low, 1e-12);
    };
    const across = fit(x), down = fit(y);
    const svg = make("svg", { viewBox: "0 0 440 320", role: "img", "aria-label": `${say("hidden")} ${at}` });
    tokens.forEach((token, i) => {
      const cx = 20 + 360 * across(x[i]), cy = 20 + 280 * down(y[i]), own = marked.includes(i);
      const kind = `point text${token.text_number % 5}${own ? " own" : ""}`;
      svg.append(make("circle", { cx, cy, r: own ? 6 : 3, class: kind }, make("title", {}, `${token.text_number + 1}: ${token.text}`)));
      svg.append(make("text", { x: cx + 7, y: cy + 4, class: kind }, own ? `${token.text} ${token.text_number + 1}` : token.text));
    });
    const cosines = marked.map((a) => make("tr", {}, make("th", { scope: "row" }, String(tokens[a].text_number + 1)),
      ...marked.map((b) => make("td", {}, cosine(layers[at][a], layers[at][b]).toFixed(2)))));
    const head = make("tr", {}, make("td"),
      ...marked.map((b) => make("th", { scope: "col" }, String(tokens[b].text_number + 1))));
    const table = make("table", {}, make("caption", {}, say("cosine")), head, ...cosines);
    picture.replaceChildren(svg, marked.length > 1 ? table : make("p", {}, say("once")));
  };
  layer.oninput = draw;
  draw();
  return [make("label", {}, `${say("layer")} `, layer, number), picture];
}

const lines = (text) => text.split("\n").filter((line) => line.trim());

function similar(found, fields) {
  const rows = lines(fields.texts).map((label, i) => ({ label, score: found[i] }));
  return bars(rows.sort((a, b) => b.score - a.score));
}

// What a panel needs of the model, its fields, its request, and how its answer is shown.
const PANELS = [
  { name: "tokens", needs: (m) => m.abilities.includes("embed"), fields: ["text"], path: "/tokenize",
    body: (f) => ({ inputs: f.text }), show: tokens },
  { name: "input", needs: (m) => m.system === "bert", fields: ["text"], path: "/tokenize",
    body: (f) => ({ inputs: f.text }), show: input },
  { name: "labels", needs: (m) => ["classify", "multilabel", "regress"].includes(m.task), fields: ["text", "second"],
    path: "/predict", body: (f) => ({ inputs: f.second ? [f.text, f.second] : f.text }), show: bars },
  { name: "masks", needs: (m) => m.abilities.includes("fill-mask"), fields: ["mask"], path: "/pipeline/fill-mask",
    body: (f) => ({ inputs: f.mask }), show: masks },
  { name: "masking", needs: (m) => m.abilities.includes("fill-mask"), fields: ["text", "share", "seed"], path: "/masking",
    body: (f) => ({ inputs: f.text, share: Number(f.share), seed: Number(f.seed) }), show: masking },
  { name: "next", needs: (m) => m.abilities.includes("follow"), fields: ["text", "next"], path: "/next_sentence",
    body: (f) => ({ inputs: f.text, second: f.next }), show: next },
  { name: "entities", needs: (m) => m.task === "tag", fields: ["text"], path: "/pipeline/token-classification",
    body: (f) => ({ inputs: f.text }), show: entities },
  { name: "answer", needs: (m) => m.task === "answer", fields: ["question", "context"],
    path: "/pipeline/question-answering",
    body: (f) => ({ inputs: { question: f.question, context: f.context } }), show: answer },
  { name: "write", needs: (m) => m.abilities.includes("generate"), fields: ["text"], path: "/pipeline/text-generation",
    body: (f) => ({ inputs: f.text, parameters: { max_new_tokens: 30 } }), show: ([one]) => [one.generated_text] },
  { name: "attention", needs: (m) => m.abilities.includes("attention"), fields: ["text", "second"], path: "/attention",
    body: (f) => ({ inputs: f.text, ...(f.second ? { second: f.second } : {}) }), show: attention },
  { name: "cross", needs: (m) => m.abilities.includes("cross-attention"), fields: ["text", "target"],
    path: "/cross_attention", body: (f) => ({ inputs: f.text, ...(f.target ? { target: f.target } : {}) }), show: cross },
  { name: "hidden", needs: (m) => m.abilities.includes("embed"), fields: ["sentences", "word"], path: "/hidden_states",
    body: (f) => ({ inputs: lines(f.sentences) }), show: hidden },
  { name: "similar", needs: (m) => m.abilities.includes("embed"), fields: ["text", "texts"], path: "/similarity",
    body: (f) => ({ inputs: { source_sentence: f.text, sentences: lines(f.texts) } }), show: similar },
  { name: "nearest", needs: (m) => m.abilities.includes("find-nearest"), fields: ["word"], path: "/nearest",
    body: (f) => ({ inputs: f.word }), show: bars },
  { name: "learn", needs: (m) => m.abilities.includes("embed"), fields: ["examples"], path: "/learn",
    body: (f) => examples(f.examples), show: learn, parts: true },
];

// Fields that are called as others are.
const LABELS = { mask: "text", sentences: "texts", next: "second" };

const ROWS = { texts: 3, sentences: 3, examples: 8 };

function field_of(field, example) {
  if (NUMBERS[field]) return make("input", { type: "number", ...NUMBERS[field] });
  if (field === "word") return make("input", { value: example });
  return make("textarea", { rows: ROWS[field] ?? 2 }, example);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function panel(model, { name, fields, path, body, show, parts }) {
  const url = `/models/${encodeURIComponent(model)}${path}`, inputs = {};
  const form = make("form", {});
  for (const field of fields) {
    const example = EXAMPLES[language][field] ?? EXAMPLES[language].text;
    inputs[field] = field_of(field, example);
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
  const show_curl = () => {
    const data = quoted(JSON.stringify(body(given())));
    curl.textContent = `curl ${location.origin}${url} -H "content-type: application/json" -d ${data}`;
  };
  form.oninput = show_curl;
  show_curl();
  form.append(make("button", { type: "submit" }, say("run")));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const values = given();
    found.setAttribute("aria-busy", "true");
    if (parts) found.replaceChildren();
    try {
      if (parts) await listen(url, body(values), (events) => found.replaceChildren(...show(events)));
      else found.replaceChildren(...show(await ask(url, body(values)), values, inputs));
      if (!found.hasChildNodes()) found.replaceChildren(say("none"));
      show_curl();
    } catch (error) {
      found.replaceChildren(make("p", { class: "wrong" }, error.message || say("failed")));
    }
    found.setAttribute("aria-busy", "false");
    reach();
  };
  const details = make("details", {}, make("summary", {}, say("curl")), curl);
  return make("section", { "data-panel": name }, make("h2", {}, say(name)), form, found, details);
}

async function show_model() {
  const model = byId("model").value;
  const about = await ask(`/models/${encodeURIComponent(model)}/info`);
  byId("about").textContent = `${about.system}, ${about.task}`;
  byId("panels").replaceChildren(...PANELS.filter((one) => one.needs(about)).map((one) => panel(model, one)));
}

async function begin() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-say]")) node.textContent = say(node.dataset.say);
  byId("language").textContent = say("other");
  byId("language").lang = language === "en" ? "ko" : "en";
  try {
    const chosen = byId("model").value;
    const models = (await ask("/v1/models")).data.map((one) => one.id);
    byId("model").replaceChildren(...models.map((name) => make("option", { value: name }, name)));
    if (models.includes(chosen)) byId("model").value = chosen;
    await show_model();
  } catch (error) {
    byId("about").textContent = error.message || say("failed");
  }
}

byId("model").onchange = show_model;
byId("key").onchange = begin;
byId("language").onclick = () => {
  language = language === "en" ? "ko" : "en";
  begin();
};
begin();
