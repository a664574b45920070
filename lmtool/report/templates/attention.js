"use strict";
// Attention weights of all kinds, layers and heads, as a heat map, as links between words, and in small.
(() => {
  const data = JSON.parse(document.getElementById("attention-data").textContent);
  const parts = data.parts.map((part) => {
    const bytes = Uint8Array.from(atob(part.weights), (character) => character.charCodeAt(0));
    return { ...part, values: new Uint16Array(bytes.buffer), rows: part.queries.length, columns: part.keys.length };
  });
  const state = { ...data.start };
  const at = (name) => document.getElementById(`attention-${name}`);
  const MEAN = -1;
  const CELL = 18;
  const LINE = 20;
  const LONGEST = 22;
  const SMALL = 64;

  // elements, whose text is never read as markup
  const svg = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const html = (name, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const short = (token) => {
    const characters = [...token];
    return characters.length > LONGEST ? `${characters.slice(0, LONGEST - 1).join("")}…` : token;
  };
  const widthOf = (tokens) => 14 + Math.ceil(Math.max(...tokens.map((token) => {
    let width = 0;
    for (const character of short(token)) width += character.codePointAt(0) < 0x1100 ? 7.2 : 13;
    return width;
  })));
  // a finger that taps does not move
  const onPoint = (picture, answer) =>
    ["pointerdown", "pointermove"].forEach((name) => picture.addEventListener(name, answer));
  const place = (picture, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());

  // rows of weights of one head, or the mean of all
  const weightsOf = (part, layer, head) => {
    const size = part.rows * part.columns;
    const found = new Float64Array(size);
    const heads = head === MEAN ? [...Array(part.heads).keys()] : [head];
    for (const one of heads) {
      const first = (layer * part.heads + one) * size;
      for (let i = 0; i < size; i += 1) found[i] += part.values[first + i] / 65535 / heads.length;
    }
    return found;
  };
  const named = () => {
    const { heads } = parts[state.part];
    const head = state.head === MEAN ? `mean of ${heads} heads` : `head ${state.head}`;
    return `${parts[state.part].title}, layer ${state.layer}, ${head}`;
  };

  let weights;
  let here;  // the cell that is read out: [row, column]
  let chosen;  // the word whose links are shown: [side, index]

  const drawHeat = () => {
    const part = parts[state.part];
    const picture = at("heat");
    const left = widthOf(part.queries);
    const top = widthOf(part.keys);
    const width = left + part.columns * CELL + 4;
    const height = top + part.rows * CELL + 4;
    for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": named() })) {
      picture.setAttribute(key, value);
    }
    const cells = svg("g", { class: "heat", transform: `translate(${left} ${top}) scale(${CELL})` });
    for (let row = 0; row < part.rows; row += 1) {
      for (let column = 0; column < part.columns; column += 1) {
        const weight = weights[row * part.columns + column];
        if (weight >= 0.002) {
          cells.append(svg("rect", { x: column, y: row, width: 1, height: 1, "fill-opacity": weight.toFixed(3) }));
        }
      }
    }
    cells.append(svg("rect", { class: "frame", width: part.columns, height: part.rows, "vector-effect": "non-scaling-stroke" }));
    cells.append(svg("rect", { class: "cursor", width: 1, height: 1, visibility: "hidden" }));
    picture.replaceChildren(
      ...part.keys.map((key, i) =>
        svg("text", { transform: `translate(${left + (i + 0.5) * CELL + 4} ${top - 5}) rotate(-90)` }, short(key))),
      ...part.queries.map((query, i) =>
        svg("text", { x: left - 6, y: top + (i + 0.5) * CELL, dy: ".35em", "text-anchor": "end" }, short(query))),
      cells,
    );
    picture.dataset.left = left;
    picture.dataset.top = top;
  };

  const readOut = (row, column) => {
    const part = parts[state.part];
    here = [Math.max(0, Math.min(part.rows - 1, row)), Math.max(0, Math.min(part.columns - 1, column))];
    const cursor = at("heat").querySelector(".cursor");
    cursor.setAttribute("x", here[1]);
    cursor.setAttribute("y", here[0]);
    cursor.removeAttribute("visibility");
    const weight = weights[here[0] * part.columns + here[1]];
    at("said").textContent = `${part.queries[here[0]]} → ${part.keys[here[1]]}: ${weight.toFixed(4)}`;
  };

  const drawNumbers = () => {
    const details = at("numbers");
    const holder = details.querySelector("div");
    if (!details.open) {
      holder.replaceChildren();
      return;
    }
    const part = parts[state.part];
    const table = html("table");
    table.append(html("caption", named()));
    const heading = table.createTHead().insertRow();
    for (const name of ["", ...part.keys]) {
      const cell = html("th", name);
      cell.scope = "col";
      heading.append(cell);
    }
    const body = table.createTBody();
    part.queries.forEach((query, row) => {
      const line = body.insertRow();
      const name = html("th", query);
      name.scope = "row";
      line.append(name);
      for (let column = 0; column < part.columns; column += 1) {
        line.insertCell().textContent = weights[row * part.columns + column].toFixed(4);
      }
    });
    holder.replaceChildren(table);
  };

  const drawLinks = () => {
    const part = parts[state.part];
    const picture = at("links");
    const left = widthOf(part.queries);
    const right = left + 160;
    const width = right + widthOf(part.keys);
    const height = Math.max(part.rows, part.columns) * LINE + 8;
    for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": named() })) {
      picture.setAttribute(key, value);
    }
    const middle = (index) => (index + 0.5) * LINE + 4;
    const shown = [];
    const marks = [[], []];
    for (let row = 0; row < part.rows; row += 1) {
      for (let column = 0; column < part.columns; column += 1) {
        const weight = weights[row * part.columns + column];
        if (weight < 0.01 || (chosen && [row, column][chosen[0]] !== chosen[1])) continue;
        shown.push(svg("path", {
          class: "link", d: `M${left} ${middle(row)}L${right} ${middle(column)}`, "stroke-opacity": weight.toFixed(3),
        }));
        if (chosen) marks[1 - chosen[0]].push([[row, column][1 - chosen[0]], weight]);
      }
    }
    const edges = [[0, left], [right, width - right]];
    const behind = marks.flatMap((own, side) => own.map(([index, weight]) => svg("rect", {
      class: "mark", x: edges[side][0], y: middle(index) - LINE / 2, width: edges[side][1], height: LINE,
      "fill-opacity": (0.6 * weight).toFixed(3),
    })));
    const words = [part.queries, part.keys].flatMap((tokens, side) => tokens.map((token, index) => svg("text", {
      x: side ? right + 6 : left - 6, y: middle(index), dy: ".35em", "text-anchor": side ? "start" : "end",
      class: chosen && chosen[0] === side && chosen[1] === index ? "here" : "word",
    }, short(token))));
    picture.replaceChildren(...behind, ...shown, ...words);
    picture.dataset.left = left;
    picture.dataset.right = right;
  };

  const choose = (side, index) => {
    const part = parts[state.part];
    const last = [part.rows, part.columns][side] - 1;
    const word = [side, Math.max(0, Math.min(last, index))];
    if (chosen && chosen[0] === word[0] && chosen[1] === word[1]) return;
    chosen = word;
    drawLinks();
  };

  const paint = (canvas, part, layer, head, colour) => {
    const step = Math.ceil(Math.max(part.rows, part.columns) / SMALL);
    canvas.width = Math.ceil(part.columns / step);
    canvas.height = Math.ceil(part.rows / step);
    const most = new Float64Array(canvas.width * canvas.height);
    const own = weightsOf(part, layer, head);
    own.forEach((weight, i) => {
      const column = Math.floor((i % part.columns) / step);
      const pixel = Math.floor(Math.floor(i / part.columns) / step) * canvas.width + column;
      most[pixel] = Math.max(most[pixel], weight);
    });
    const brush = canvas.getContext("2d");
    brush.fillStyle = colour;
    most.forEach((weight, i) => {
      brush.globalAlpha = Math.min(1, weight);
      brush.fillRect(i % canvas.width, Math.floor(i / canvas.width), 1, 1);
    });
  };

  const press = () => {
    for (const button of at("all").querySelectorAll("button")) {
      const is = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", is);
    }
    const buttons = [...at("all").querySelectorAll("button")];
    const entry = buttons.find((button) => button.getAttribute("aria-pressed") === "true") || buttons[0];
    for (const button of buttons) button.tabIndex = button === entry ? 0 : -1;
  };

  const drawAll = () => {
    const part = parts[state.part];
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--shade").trim();
    const lines = [];
    for (let layer = 0; layer < part.layers; layer += 1) {
      const line = html("div");
      const number = html("span", `${layer}`);
      number.className = "number";
      line.append(number);
      for (let head = 0; head < part.heads; head += 1) {
        const button = html("button");
        button.type = "button";
        button.title = `layer ${layer}, head ${head}`;
        button.setAttribute("aria-label", button.title);
        button.dataset.layer = layer;
        button.dataset.head = head;
        const canvas = html("canvas");
        paint(canvas, part, layer, head, colour);
        button.append(canvas);
        line.append(button);
      }
      lines.push(line);
    }
    at("all").replaceChildren(...lines);
    press();
  };

  const fill = (select, names, value) => {
    select.replaceChildren(...names.map(([own, name]) => {
      const option = html("option", name);
      option.value = own;
      return option;
    }));
    select.value = value;
  };

  const drawHead = () => {
    const part = parts[state.part];
    const heads = [...Array(part.heads).keys()].map((head) => [head, `${head}`]);
    fill(at("layer"), [...Array(part.layers).keys()].map((layer) => [layer, `${layer}`]), state.layer);
    fill(at("head"), part.heads > 1 ? [[MEAN, "mean of all"], ...heads] : heads, state.head);
    weights = weightsOf(part, state.layer, state.head);
    here = undefined;
    chosen = undefined;
    at("said").textContent = "";
    drawHeat();
    drawLinks();
    drawNumbers();
  };

  const drawPart = () => {
    const part = parts[state.part];
    state.layer = Math.min(state.layer, part.layers - 1);
    state.head = part.heads === 1 ? 0 : Math.min(state.head, part.heads - 1);
    drawHead();
    drawAll();
  };

  fill(at("part"), parts.map((part, i) => [i, part.title]), state.part);
  at("part").addEventListener("change", () => {
    state.part = Number(at("part").value);
    drawPart();
  });
  for (const name of ["layer", "head"]) {
    at(name).addEventListener("change", () => {
      state[name] = Number(at(name).value);
      drawHead();
      press();
    });
  }
  onPoint(at("heat"), (event) => {
    const part = parts[state.part];
    const point = place(at("heat"), event);
    const column = Math.floor((point.x - at("heat").dataset.left) / CELL);
    const row = Math.floor((point.y - at("heat").dataset.top) / CELL);
    if (row >= 0 && row < part.rows && column >= 0 && column < part.columns) readOut(row, column);
  });
  at("heat").addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    if (here) readOut(here[0] + moves[event.key][0], here[1] + moves[event.key][1]);
    else readOut(0, 0);
  });
  onPoint(at("links"), (event) => {
    const part = parts[state.part];
    const point = place(at("links"), event);
    const side = point.x < Number(at("links").dataset.left) ? 0 : 1;
    const index = Math.floor((point.y - 4) / LINE);
    const isWord = side === 0 || point.x > Number(at("links").dataset.right);
    if (isWord && index >= 0 && index < [part.rows, part.columns][side]) choose(side, index);
    else if (event.type === "pointerdown") showAllLinks();
  });
  const showAllLinks = () => {
    if (!chosen) return;
    chosen = undefined;
    drawLinks();
  };
  at("links").addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") showAllLinks();
  });
  at("links").addEventListener("keydown", (event) => {
    const [side, index] = chosen || [0, -1];
    const moves = {
      ArrowUp: () => choose(side, index - 1), ArrowDown: () => choose(side, index + 1),
      ArrowLeft: () => choose(0, Math.max(0, index)), ArrowRight: () => choose(1, Math.max(0, index)),
      Escape: showAllLinks,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
  at("all").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    state.layer = Number(button.dataset.layer);
    state.head = Number(button.dataset.head);
    drawHead();
    press();
  });
  at("all").addEventListener("keydown", (event) => {
    const { heads } = parts[state.part];
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads };
    const buttons = [...at("all").querySelectorAll("button")];
    const from = buttons.indexOf(document.activeElement);
    if (!(event.key in moves) || from < 0) return;
    event.preventDefault();
    const next = buttons[from + moves[event.key]];
    if (!next) return;
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  });
  at("numbers").addEventListener("toggle", drawNumbers);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawPart();
})();
