"use strict";
const at = (id) => document.getElementById(id);
const KEYS = "1234567890abcdefghijklmnopqrstuvwxyz";
const key = location.hash.slice(1);
const mine = sessionStorage.getItem("window") || crypto.getRandomValues(new Uint32Array(2)).join("-");
sessionStorage.setItem("window", mine);
let asked = null;
let shown = null;
let state = null;
let busy = false;
let chosen = new Set();
const made = [];

function tell(text, wrong = false) {
  at("said").textContent = text;
  at("said").classList.toggle("wrong", wrong);
}

const element = (name, text, kind = "") => {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  made.dir = "auto";
  return made;
};
const percent = (share) => `${(100 * share).toFixed(0)} %`;
const written = (labels) => (labels === null ? "no answer" : labels.join("; ") || "no label");

async function ask(path, body) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
  const sent = { method: "POST", headers, body: JSON.stringify(body), cache: "no-store", redirect: "error" };
  const response = await fetch(path, sent).catch(() => {
    throw new Error("lmtool label does not answer. What was answered before is kept: start it again, and open its new address.");
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const error = new Error(answer.error ? answer.error.message : `status ${response.status}`);
  error.row = answer.row;
  throw error;
}

function items(list, rows, text) {
  list.replaceChildren(
    ...rows.map((row) => {
      const item = document.createElement("li");
      const button = element("button", text(row));
      button.type = "button";
      button.addEventListener("click", () => look(row));
      item.append(button);
      return item;
    }),
  );
}

const words = (row) => row.texts.map((pair) => pair[1]).join(" · ").slice(0, 160);

function progress(answer) {
  if (!answer.classes) return;
  state = answer;
  const facts = [`${state.answers} of ${state.rows} rows`];
  if (state.estimate) {
    const [share, low, high, n] = state.estimate;
    const within = `${percent(low)} to ${percent(high)}`;
    facts.push(`a model of these labels is right on about ${percent(share)} (${within}; ${n} random rows)`);
  }
  at("facts").textContent = facts.join(", ");
  at("wrong").hidden = !state.wrong.length;
  const list = at("wrong").querySelector("ul");
  items(list, state.wrong.slice(0, 8), (row) => `${row.number}: ${written(row.labels)}, rather ${written(row.suggested)}? ${words(row)}`);
}

function show(row) {
  shown = row;
  chosen = new Set(row && row.labels ? row.labels : []);
  at("row").hidden = !row;
  at("back").hidden = !row || (asked !== null && row.row === asked.row);
  at("submit").hidden = !state.multi;
  if (!row) return tell("No row is left to ask about. Ctrl-C in the terminal ends.");
  const answer = row.labels === null ? "" : `, answered: ${written(row.labels)}`;
  at("place").textContent = `Row ${row.number}${answer}`;
  const several = row.texts.length > 1;
  at("texts").replaceChildren(
    ...row.texts.flatMap(([name, text]) => [...(several ? [element("h2", name)] : []), element("p", text, "turn")]),
  );
  draw();
}

function draw() {
  at("classes").replaceChildren(
    ...state.classes.map(([name, count], i) => {
      const button = element("button", "");
      button.type = "button";
      if (i < KEYS.length) button.append(element("kbd", KEYS[i]), " ");
      button.append(element("bdi", name), element("span", ` ${count}`, "given"));
      button.setAttribute("aria-pressed", chosen.has(name));
      button.addEventListener("click", () => choose(name));
      return button;
    }),
  );
}

// One request at a time: a key that is pressed too early answers no row that nobody has seen.
async function change(path, body, then) {
  if (busy) return;
  busy = true;
  at("row").ariaBusy = "true";
  tell("");
  try {
    const answer = await ask(path, { window: mine, ...body });
    progress(answer);
    asked = answer.row;
    then(answer.row);
  } catch (error) {
    if (error.row) {
      progress(await ask("progress", { window: mine }).catch(() => ({})));
      show(error.row);
    }
    tell(error.message, true);
  }
  busy = false;
  at("row").ariaBusy = "false";
  document.activeElement.blur();
}

function answer(labels) {
  const { row, version, labels: before } = shown || {};
  if (!shown) return;
  change("answer", { row, version, labels }, (next) => {
    made.push({ ...shown, version: version + 1, labels: before });
    show(next);
  });
}

function undo() {
  const last = made.pop();
  if (!last) return tell("There is no answer of this window to take back.", true);
  const { row, version, labels } = last;
  change("answer", { row, version, labels }, () => show({ ...last, version: version + 1 }));
}

function choose(name) {
  if (!state.multi) return answer([name]);
  if (!chosen.delete(name)) chosen.add(name);
  draw();
}

function look(row) {
  tell("");
  show(row);
  document.activeElement.blur();
  scrollTo(0, 0);
}

const submit = () => answer([...chosen]);
const pass = () => answer(null);
const back = () => {
  if (shown && asked && shown.row !== asked.row) look(asked);
  else change("next", {}, show);
};

at("submit").addEventListener("click", submit);
at("pass").addEventListener("click", pass);
at("undo").addEventListener("click", undo);
at("back").addEventListener("click", back);
at("more").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("name").value.trim();
  at("name").value = "";
  at("name").blur();
  if (!name) return;
  if (state.multi) {
    if (!state.classes.some((one) => one[0] === name)) state.classes.push([name, 0]);
    chosen.add(name);
    draw();
  } else answer([name]);
});
at("look").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const { rows } = await ask("find", { window: mine, text: at("words").value });
    const list = at("found").querySelector("ul");
    items(list, rows, (row) => `${row.number}: ${written(row.labels)}. ${words(row)}`);
    at("found").hidden = false;
    if (rows.length) list.querySelector("button").focus();
    else tell("No row has these words.");
  } catch (error) {
    tell(error.message, true);
  }
});

function step(by) {
  const buttons = [...document.querySelectorAll(".rows button")].filter((one) => one.offsetParent);
  const next = buttons[buttons.indexOf(document.activeElement) + by];
  if (next) next.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input");
  if (event.key === "Escape") {
    document.activeElement.blur();
    at("found").hidden = true;
    return back();
  }
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || typing || !state) return;
  const onButton = event.target.matches("button");
  const index = KEYS.indexOf(event.key);
  const actions = {
    Enter: state.multi && !onButton ? submit : null,
    " ": onButton ? null : pass,
    Backspace: undo,
    "/": () => at("words").focus(),
    "+": () => at("name").focus(),
    "!": () => state.wrong.length && look(state.wrong[0]),
    ArrowDown: onButton ? () => step(1) : null,
    ArrowUp: onButton ? () => step(-1) : null,
  };
  const action = actions[event.key] || (state.classes[index] ? () => choose(state.classes[index][0]) : null);
  if (!action) return;
  event.preventDefault();
  action();
});
setInterval(() => {
  if (!document.hidden && !busy) ask("progress", { window: mine }).then(progress, (error) => tell(error.message, true));
}, 5000);
change("next", {}, show);
