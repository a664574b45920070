"use strict";
const at = (id) => document.getElementById(id);
const said = [];
let model = null;
let key = "";
let stopping = null;

function tell(text, wrong = false) {
  at("said").textContent = text;
  at("said").classList.toggle("wrong", wrong);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
  if (response.ok) return response;
  at("door").hidden = response.status !== 401;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error ? body.error.message : `status ${response.status}`);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    const lines = (held + value).split("\n\n");
    held = lines.pop();
    for (const line of lines) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

const chats = () => document.querySelector("[name=way]:checked").value === "chat";

function settings(seed) {
  const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  const found = { model: model.id, stream: true, seed };
  for (const id of ["max_tokens", "temperature", "top_p", "top_k"]) found[id] = number(id);
  if (at("stop").value) found.stop = [at("stop").value];
  return found;
}

function percent(logprob) {
  return `${(100 * Math.exp(logprob)).toPrecision(3)} %`;
}

function shade(logprob) {
  const p = Math.exp(logprob);
  return p >= 0.5 ? "" : p >= 0.25 ? "p3" : p >= 0.1 ? "p2" : p >= 0.01 ? "p1" : "p0";
}

function add(text, tokens) {
  const shown = document.createElement("span");
  shown.textContent = text;
  shown.className = "token";
  if (tokens.length) {
    const lowest = Math.min(...tokens.map((token) => token.logprob));
    if (shade(lowest)) shown.classList.add(shade(lowest));
    shown.dataset.said = tokens
      .map((token) => {
        const others = token.others.map(([piece, logprob]) => `${piece} ${percent(logprob)}`);
        return `${token.piece}: ${percent(token.logprob)}; most probable: ${others.join(", ")}`;
      })
      .join(" | ");
    shown.tabIndex = at("written").querySelector(".token[tabindex='0']") ? -1 : 0;
  }
  at("written").append(shown);
}

function read(choice) {
  const found = choice.logprobs;
  if (!found) return [];
  if (found.content) {
    return found.content.map((one) => ({
      piece: one.token,
      logprob: one.logprob,
      others: one.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return found.tokens.map((piece, i) => ({
    piece,
    logprob: found.token_logprobs[i],
    others: Object.entries(found.top_logprobs[i] || {}),
  }));
}

function showTalk(messages = said) {
  at("talk").replaceChildren(
    ...messages.map((message) => {
      const turn = document.createElement("p");
      turn.className = `turn ${message.role}`;
      turn.dir = "auto";
      turn.textContent = message.content;
      return turn;
    }),
  );
  at("clear").hidden = !messages.length;
}

// Only an answer makes a message part of the conversation; until then it is lost nowhere.
async function generate(seed, again = false) {
  const talks = chats();
  const answersAgain = talks && again && said.length > 0;
  const prompt = answersAgain ? "" : at("prompt").value;
  const messages = answersAgain ? said.slice(0, -1) : [...said, { role: "user", content: prompt }];
  let body = { ...settings(seed), prompt, logprobs: 5 };
  if (talks) {
    if (!answersAgain && !prompt.trim()) return tell("Write a message first.", true);
    if (!answersAgain) at("prompt").value = "";
    body = { ...settings(seed), messages, logprobs: true, top_logprobs: 5 };
    showTalk(messages);
  }
  at("written").replaceChildren();
  at("readout").value = "";
  at("result").hidden = false;
  if (!talks) {
    const given = document.createElement("span");
    given.className = "given";
    given.textContent = prompt;
    at("written").append(given);
  }
  stopping = new AbortController();
  busy(true);
  tell(`Seed ${seed}`);
  const began = performance.now();
  let n = 0;
  let text = "";
  let failed = false;
  try {
    const path = talks ? "v1/chat/completions" : "v1/completions";
    const response = await ask(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: stopping.signal,
    });
    let waiting = [];
    for await (const event of events(response)) {
      for (const choice of event.choices) {
        const more = talks ? choice.delta.content : choice.text;
        const tokens = read(choice);
        n += tokens.length;
        waiting.push(...tokens);
        if (more) {
          text += more;
          add(more, waiting);
          waiting = [];
        }
      }
    }
    const seconds = (performance.now() - began) / 1000;
    if (talks && !text) throw new Error("The answer has no text.");
    tell(`Seed ${seed}, ${n} tokens, ${(n / seconds).toFixed(1)} tokens/s`);
  } catch (error) {
    failed = error.name !== "AbortError";
    if (failed) tell(error.message, true);
    else tell(`Seed ${seed}, stopped after ${n} tokens`);
  }
  if (talks) {
    if (text && !failed) said.splice(0, Infinity, ...messages, { role: "assistant", content: text });
    else at("prompt").value = [prompt, at("prompt").value].filter((one) => one.trim()).join("\n");
    showTalk();
  }
  busy(false);
}

function busy(now) {
  at("go").disabled = now;
  at("halt").disabled = !now;
  at("again").disabled = now;
  at("clear").disabled = now;
  for (const way of document.querySelectorAll("[name=way]")) way.disabled = now;
}

const drawn = () => crypto.getRandomValues(new Uint32Array(1))[0];

async function open() {
  try {
    [model] = (await (await ask("v1/models")).json()).data;
  } catch (error) {
    tell(at("door").hidden ? error.message : "This server asks for its API key.", at("door").hidden);
    return;
  }
  at("door").hidden = true;
  at("name").textContent = document.title = model.id;
  const context = model.context === null ? "" : `, context of ${model.context} tokens`;
  at("facts").textContent = model.description + context;
  at("ways").hidden = model.chat === null;
  if (model.chat === "the model's own") {
    document.querySelector("[value=chat]").checked = true;
    choose();
  }
  at("max_tokens").max = model.max_tokens;
  at("ask").hidden = !model.completions;
  tell(model.completions ? "" : "This model generates no text.");
}

function choose() {
  at("prompt-label").textContent = chats() ? "Message" : "Prompt";
  at("talk").hidden = !chats();
  at("clear").hidden = !chats() || !said.length;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  generate(at("seed").value === "" ? drawn() : Number(at("seed").value));
});
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value;
  open();
});
at("halt").addEventListener("click", () => stopping.abort());
at("again").addEventListener("click", () => {
  at("seed").value = "";
  generate(drawn(), true);
});
at("clear").addEventListener("click", () => {
  said.length = 0;
  at("written").replaceChildren();
  at("result").hidden = true;
  showTalk();
});
for (const way of document.querySelectorAll("[name=way]")) way.addEventListener("change", choose);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("go").disabled) at("ask").requestSubmit();
});
function point(event) {
  const token = event.target.closest(".token");
  if (token) at("readout").value = token.dataset.said || "";
}
at("written").addEventListener("pointerover", point);
at("written").addEventListener("focusin", point);
at("written").addEventListener("keydown", (event) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const next = step && event.target[step];
  if (!next || !next.matches(".token")) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
open();
