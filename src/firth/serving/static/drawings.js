// The elements of the page, and the answers of its panels as texts and pictures.

import { say } from "./words.js";

const SVG = new Set(["svg", "g", "line", "polyline", "text", "circle", "title"]);

// An element with attributes and children; text is never read as HTML.
export function make(name, attributes = {}, ...children) {
  const node = SVG.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export const lines = (text) => text.split("\n").filter((line) => line.trim());

// A line is an example: its label, a colon (Korean keyboards have a wide one), its text. Without a colon it has no label,
// and the server says so.
export function examples(text) {
  const rows = lines(text).map((line) => /^([^:：]*)[:：](.*)$/s.exec(line)?.slice(1) ?? ["", line]);
  return { texts: rows.map(([, words]) => words.trim()), labels: rows.map(([label]) => label.trim()) };
}

// Whether the vocabulary lacks a token's text: vocabularies write that differently, and words without a vector have
// numbers behind it.
export const is_unknown = (token, about) => token.id >= about.vocabulary_size || /^[[<]unk[\]>]$/i.test(token.text);

// Pictures are as wide as a panel: their letters keep their size on narrow screens.
function room() {
  const answer = document.querySelector("section .answer");
  return Math.max(260, Math.min(answer?.clientWidth ?? 440, 560));
}

const pen = document.createElement("canvas").getContext("2d");
function width_of(text, size) {
  pen.font = `${size}px system-ui, "Noto Sans CJK KR", sans-serif`;
  return pen.measureText(text).width;
}

// Offsets count characters; a string of JavaScript counts some of them twice.
function slices(text, spans) {
  const characters = Array.from(text), parts = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    parts.push(characters.slice(at, span.start).join(""));
    parts.push(make("mark", {}, characters.slice(span.start, span.end).join(""), " ", make("small", {}, span.note)));
    at = span.end;
  }
  return [make("p", {}, ...parts, characters.slice(at).join(""))];
}

export function bars(rows, kind = "") {
  return rows.map(({ label, score }) =>
    make("div", { class: `bar ${kind}` }, make("span", {}, label ?? "—"),
      make("meter", { min: 0, max: 1, value: Math.max(0, Math.min(1, score)), "aria-label": label ?? "—" }),
      make("span", {}, score.toFixed(3))));
}

// A value may lie anywhere.
export function value([one]) {
  return [make("p", {}, make("b", {}, one.score.toFixed(3)))];
}

export function tokens([row], fields, inputs, about) {
  const unknown = row.filter((token) => is_unknown(token, about)).length;
  const note = unknown ? [make("p", { class: "note" }, `${unknown} / ${row.length}: ${say("unknown")}`)] : [];
  const boxes = row.map((token) => make("span", { class: token.special ? "token special" : "token" },
    token.text, " ", make("small", {}, String(token.id))));
  return [make("div", {}, ...boxes), ...note];
}

// What is added for each token: three learned vectors, by the token, by its segment, and by its position.
export function input([first, second]) {
  const segments = [first, ...(second ? [second.filter((token, i) => i || !token.special)] : [])];
  const column = (kind, ...rows) => make("span", { class: `sum ${kind}` }, ...rows.map((row) => make("span", {}, row)));
  let position = 0;
  const columns = segments.flatMap((row, segment) => row.map((token) =>
    column(token.special ? "token special" : "token", token.text, "AB"[segment], String(position++))));
  return [make("div", { class: "sums" }, column("names", say("token"), say("segment"), say("position")), ...columns)];
}

export function next(found) {
  return bars([{ label: say("follows"), score: found.probability }]);
}

export function masks(found) {
  const lists = Array.isArray(found[0]) ? found : [found];
  return lists.map((list) => make("div", {}, ...bars(list.map((one) => ({ label: one.token_str, score: one.score })))));
}

export function entities(found, fields) {
  if (!found.length) return [make("p", {}, say("none"))];
  return slices(fields.named, found.map((one) => ({ ...one, note: `${one.entity_group} ${one.score.toFixed(2)}` })));
}

export function answer(found, fields) {
  if (!found.answer) return [make("p", {}, say("none"))];
  return slices(fields.context, [{ ...found, note: found.score.toFixed(2) }]);
}

export function choose(found, fields) {
  return bars(lines(fields.choices).map((label, i) => ({ label, score: found.scores[i] })), "long");
}

export function write([one]) {
  return [make("p", {}, one.generated_text)];
}

export function similar(found, fields) {
  const rows = lines(fields.texts).map((label, i) => ({ label, score: found[i] }));
  return bars(rows.sort((a, b) => b.score - a.score), "long");
}

export function masking(found, fields, inputs) {
  const chosen = new Map(found.masked.map((one) => [one.index, one]));
  const correct = found.masked.filter((one) => one.candidates[0].token_str === found.tokens[one.index].text).length;
  const row = found.tokens.map((token, i) => {
    const one = chosen.get(i);
    if (!one) return make("span", { class: token.special ? "token special" : "token" }, token.text);
    return make("span", { class: `token ${one.how}` }, one.shown, " ", make("small", {}, `${token.text}, ${say(one.how)}`));
  });
  const guesses = found.masked.map((one) => make("div", {},
    make("p", {}, `${say("original")}: `, make("b", {}, found.tokens[one.index].text), ` (${one.probability.toFixed(3)})`),
    ...bars(one.candidates.map((best) => ({ label: best.token_str, score: best.score })))));
  inputs.seed.value = Number(fields.seed) + 1; // the next run masks other tokens
  return [make("div", {}, ...row), make("p", {}, `${say("accuracy")}: ${correct} / ${found.masked.length}`), ...guesses];
}

// A chart of shares over places along the axis, each with its name; `series` have `name`, `shares` and maybe `intervals`.
function chart(title, x_title, names, places, series) {
  const width = room(), height = 260, left = 52, right = 16, top = 30, bottom = 44;
  const last = Math.max(...places), first = Math.min(...places);
  const x = (place) => left + (width - left - right) * (last > first ? (place - first) / (last - first) : .5);
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const share of [0, .25, .5, .75, 1]) {
    svg.append(make("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: "grid" }),
      make("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`));
  }
  svg.append(make("text", { x: 0, y: 14 }, say("correct")),
    make("text", { x: width - right, y: height - 6, "text-anchor": "end" }, x_title));
  // Names that would meet are left out.
  let free = -Infinity;
  names.forEach((name, i) => {
    const half = width_of(name, 13) / 2;
    if (x(places[i]) - half < free) return;
    free = x(places[i]) + half + 6;
    svg.append(make("text", { x: x(places[i]), y: height - bottom + 18, "text-anchor": "middle" }, name));
  });
  series.forEach(({ name, shares, intervals, mark = true }, i) => {
    const path = shares.map((share, n) => `${x(places[n])},${y(share)}`).join(" ");
    svg.append(make("polyline", { points: path, class: `curve text${i}${mark ? "" : " dashed"}` }));
    shares.forEach((share, n) => {
      if (intervals) {
        const [low, high] = intervals[n];
        svg.append(make("line", { x1: x(places[n]), x2: x(places[n]), y1: y(low), y2: y(high), class: `whisker text${i}` }));
      }
      if (!mark) return;
      svg.append(make("circle", { cx: x(places[n]), cy: y(share), r: 4, class: `point text${i}` },
        make("title", {}, `${name}: ${share.toFixed(2)}`)));
    });
  });
  return svg;
}

const key = (names) => make("p", {}, ...names.map((name, i) => make("span", { class: `key text${i % 5}` }, name)));

// Curves over the number of examples, which doubles from point to point.
export function learn(points) {
  if (!points.length) return [];
  const series = ["encoder", "tfidf", "majority"].map((way) =>
    ({ name: say(way), shares: points.map((point) => point[way]), mark: way !== "majority" }));
  const names = points.map((point) => String(point.examples)), places = points.map((point) => Math.log2(point.examples));
  const keys = series.map(({ name, shares }) => `${name} ${(100 * shares.at(-1)).toFixed(0)} %`);
  return [chart(say("learn"), say("count"), names, places, series), key(keys)];
}

// Accuracy by layer; the last event says which one is best.
export function layers(events) {
  const points = events.filter((event) => "layer" in event), best = events.find((event) => "best" in event);
  if (!points.length) return [];
  const numbers = points.map((point) => point.layer);
  const series = [
    { name: say("encoder"), shares: points.map((point) => point.accuracy), intervals: points.map((point) => point.interval) },
    { name: say("majority"), shares: points.map((point) => point.majority), mark: false },
  ];
  const picture = chart(say("layers"), say("layer"), numbers.map(String), numbers, series);
  const keys = key(series.map(({ name }) => name));
  if (!best) return [picture, keys];
  const share = (100 * points[best.best].accuracy).toFixed(0), interval = best.best_interval.map(Math.round).join("–");
  const found = make("p", {}, `${say("best")}: `, make("b", {}, String(best.best)), ` (${share} %); `,
    make("span", { class: "whole" }, `${say("interval")}: ${interval}`));
  return [found, picture, keys];
}

// The colour of weights, as three numbers.
function accent() {
  const value = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  return [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
}

// A head's weights as a small map: its rows attend, its columns are attended to.
function map_of(weights, rows, columns) {
  const canvas = make("canvas", { width: columns, height: rows }), colour = accent();
  const image = new ImageData(columns, rows);
  weights.forEach((weight, i) => image.data.set([...colour, weight], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Lines from each token on the left to those on the right that it attends to, for the head that is chosen among all.
function attention_of(rows, columns, [n_layers, n_heads], base64) {
  const weights = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const size = rows.length * columns.length, picture = make("div");
  const of_head = (layer, head) => weights.subarray((layer * n_heads + head) * size, (layer * n_heads + head + 1) * size);
  const title = (layer, head) => `${say("layer")} ${layer + 1}, ${say("head")} ${head + 1}`;
  const height = 20, width = room(), left = .34 * width, right = .66 * width;
  const draw = (layer, head) => {
    const shown = of_head(layer, head);
    const svg = make("svg", { viewBox: `0 0 ${width} ${Math.max(rows.length, columns.length) * height + 8}`, role: "img",
      "aria-label": `${say("attention")}: ${title(layer, head)}` });
    const drawn = [];
    shown.forEach((weight, at) => {
      if (weight < 5) return;
      const row = Math.floor(at / columns.length), column = at % columns.length;
      const line = make("line", { x1: left + 8, y1: (row + .65) * height, x2: right - 8, y2: (column + .65) * height,
        "stroke-width": 2, "stroke-opacity": weight / 255 });
      drawn.push({ row, column, line });
      svg.append(line);
    });
    const side = (tokens, which, x, anchor) => tokens.forEach((token, i) => {
      const text = make("text", { x, y: (i + .85) * height, "text-anchor": anchor }, token);
      const mark = (on) => drawn.forEach((one) => one.line.classList.toggle("faint", on && one[which] !== i));
      text.onpointerenter = () => mark(true);
      text.onpointerleave = () => mark(false);
      svg.append(text);
    });
    side(rows, "row", left, "end");
    side(columns, "column", right, "start");
    picture.replaceChildren(make("p", { class: "note" }, title(layer, head)), svg);
  };
  const buttons = [];
  const table = make("table", { class: "heads" }, make("caption", {}, say("heads")),
    make("tr", {}, make("td"), ...Array.from({ length: n_heads }, (_, head) => make("th", { scope: "col" }, String(head + 1)))),
    ...Array.from({ length: n_layers }, (_, layer) => make("tr", {}, make("th", { scope: "row" }, String(layer + 1)),
      ...Array.from({ length: n_heads }, (_, head) => {
        const button = make("button", { type: "button", "aria-label": title(layer, head), title: title(layer, head) },
          map_of(of_head(layer, head), rows.length, columns.length));
        button.onclick = () => {
          for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
          draw(layer, head);
        };
        buttons.push(button);
        return make("td", {}, button);
      }))));
  // Small maps of few heads, and as small as they must be of many.
  table.style.maxWidth = `${1.5 + 3.6 * n_heads}rem`;
  buttons[0].click();
  return [table, picture];
}

export function attention(found) {
  return attention_of(found.tokens, found.tokens, found.shape, found.weights);
}

export function cross(found) {
  const translation = make("p", {}, make("b", {}, found.translation));
  return [translation, ...attention_of(found.tokens, found.source, found.shape, found.weights)];
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
// Of each: the places of the rows, and the share of the variance that it has.
function project(rows, before) {
  const mean = rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
  const centred = rows.map((row) => row.map((value, j) => value - mean[j]));
  const products = centred.map((a) => Float64Array.from(centred, (b) => dot(a, b)));
  const whole = Math.max(products.reduce((sum, row, i) => sum + row[i], 0), 1e-12);
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
    axes.push({ unit, share: value / whole, places: unit.map((x) => x * Math.sqrt(value)) });
  }
  return axes.map(({ places, share }, axis) =>
    ({ share, places: before && dot(places, before[axis].places) < 0 ? places.map((x) => -x) : places }));
}

// Points with their names, as far as these find room: `points` have x, y, name, kind, title, and own if they are marked.
function cloud(title, points, axes) {
  const width = room(), height = Math.round(.8 * width);
  // Names stay between 0 and `height`; what the axes are stands above and below.
  const svg = make("svg", { viewBox: `0 -20 ${width} ${height + 44}`, role: "img", "aria-label": title });
  const fit = (values, low, high) => {
    const least = Math.min(...values), most = Math.max(...values);
    return (value) => low + (high - low) * (most > least ? (value - least) / (most - least) : .5);
  };
  const across = fit(points.map((one) => one.x), 24, width - 64), down = fit(points.map((one) => one.y), 24, height - 24);
  const places = points.map((one) => ({ ...one, cx: across(one.x), cy: down(one.y), r: one.own ? 6 : 3 }));
  const taken = places.map(({ cx, cy, r }) => [cx - r, cy - r, cx + r, cy + r]);
  const names = make("g");
  for (const one of places.sort((a, b) => Boolean(b.own) - Boolean(a.own))) {
    svg.append(make("circle", { cx: one.cx, cy: one.cy, r: one.r, class: `${one.kind}${one.own ? " own" : ""}` },
      make("title", {}, one.title)));
    const size = one.own ? 13 : 11, wide = width_of(one.name, size) + (one.own ? 8 : 2);
    // Right, left, above and below; the names of marked points may stand farther off.
    const spots = [3, ...(one.own ? [16, 32, 48] : [])].flatMap((away) => {
      const gap = one.r + away;
      return [[one.cx + gap, one.cy + 4], [one.cx - gap - wide, one.cy + 4],
        [one.cx - wide / 2, one.cy - gap], [one.cx - wide / 2, one.cy + gap + size - 2]];
    }).map(([x, y]) => [x, y - size + 2, x + wide, y + 2]);
    const box = spots.find(([x, y, x2, y2]) => x >= 0 && x2 <= width && y >= 0 && y2 <= height
      && !taken.some((other) => x < other[2] && x2 > other[0] && y < other[3] && y2 > other[1])) ?? (one.own && spots[0]);
    if (!box) continue;
    taken.push(box);
    names.append(make("text", { x: box[0], y: box[3] - 2, class: `${one.kind}${one.own ? " own" : ""}` }, one.name));
  }
  const axis = (number) => `${say("component")} ${number + 1}: ${(100 * axes[number].share).toFixed(0)} ${say("variance")}`;
  svg.append(names, make("line", { x1: 8, x2: 8, y1: 0, y2: height, class: "grid" }),
    make("line", { x1: 8, x2: width, y1: height, y2: height, class: "grid" }),
    make("text", { x: 8, y: -6, class: "axis" }, `↕ ${axis(1)}`),
    make("text", { x: width, y: height + 16, "text-anchor": "end", class: "axis" }, `↔ ${axis(0)}`));
  return svg;
}

export function hidden(found, fields) {
  const texts = lines(fields.sentences), characters = texts.map((text) => Array.from(text));
  // Special tokens lie far from all others and would leave these no room.
  const all = found.flatMap((one, text) => one.tokens.map((token) => ({ ...token, text_number: text })))
    .filter((token) => !token.special);
  if (!all.length) return [make("p", {}, say("none"))];
  const word = fields.word.trim().toLowerCase();
  const vectors = found[0].layers.map((_, number) => found.flatMap((one) => {
    const [count, width] = one.layers[number].shape, values = float16(one.layers[number].states);
    return Array.from({ length: count }, (_, i) => values.subarray(i * width, (i + 1) * width))
      .filter((_, i) => !one.tokens[i].special);
  }));
  const axes = [];
  for (const rows of vectors) axes.push(project(rows, axes.at(-1)));
  // Where the word begins: its first token stands for it.
  const marked = all.flatMap((token, i) => {
    if (!word) return [];
    const rest = characters[token.text_number].slice(token.start, token.start + Array.from(word).length).join("");
    const within = token.start > 0 && /[\p{L}\p{N}]/u.test(characters[token.text_number][token.start - 1]);
    return rest.toLowerCase() === word && !within ? [i] : [];
  });
  const last = vectors.length - 1;
  const layer = make("input", { type: "range", min: 0, max: last, value: last, "aria-label": say("layer") });
  const number = make("output"), picture = make("div");
  const draw = () => {
    const at = Number(layer.value), [x, y] = axes[at];
    number.textContent = ` ${at} / ${last}`;
    const points = all.map((token, i) => {
      const own = marked.includes(i);
      return { x: x.places[i], y: y.places[i], own, kind: `point text${token.text_number % 5}`,
        name: own ? `${token.text} ${token.text_number + 1}` : token.text, title: `${token.text_number + 1}: ${token.text}` };
    });
    const cosines = marked.map((a) => make("tr", {}, make("th", { scope: "row" }, String(all[a].text_number + 1)),
      ...marked.map((b) => make("td", {}, cosine(vectors[at][a], vectors[at][b]).toFixed(2)))));
    const head = make("tr", {}, make("td"), ...marked.map((b) => make("th", { scope: "col" }, String(all[b].text_number + 1))));
    const table = make("table", {}, make("caption", {}, say("cosine")), head, ...cosines);
    const keys = make("p", {}, ...texts.map((text, i) => make("span", { class: `key line text${i % 5}` }, `${i + 1} ${text}`)));
    picture.replaceChildren(cloud(`${say("hidden")} ${at}`, points, axes[at]), keys,
      marked.length > 1 ? table : make("p", { class: "note" }, say("once")));
  };
  layer.oninput = draw;
  draw();
  return [make("label", {}, `${say("layer")} `, layer, number), picture];
}
