"use strict";
// The token that is pointed at, focused, or reached by the arrow keys: its probability, and the best in its place.
for (const box of document.querySelectorAll(".tokens")) {
  const known = JSON.parse(box.querySelector("script").textContent);
  const tokens = [...box.querySelectorAll(".token")];
  const chosen = box.querySelector(".chosen");
  const add = (parent, name, text, kind) => {
    const element = parent.appendChild(document.createElement(name));
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const show = (index) => {
    tokens.forEach((token, i) => token.classList.toggle("here", i === index));
    const one = known[index];
    chosen.replaceChildren();
    add(chosen, "p", one.text);
    const body = add(add(chosen, "table"), "tbody");
    for (const other of one.alternatives) {
      const row = add(body, "tr");
      add(row, "td", other.piece, other.kept ? (other.taken ? "taken" : "") : "out");
      const meter = add(add(row, "td"), "meter");
      meter.value = other.p;
      add(row, "td", other.p.toFixed(4), "n");
      add(row, "td", other.kept ? (other.taken ? "generated" : "") : "removed by the filters");
    }
  };
  if (tokens.length) show(0);
  tokens.forEach((token, index) => {
    token.addEventListener("pointerover", () => show(index));
    token.addEventListener("focus", () => show(index));
    token.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      tokens[Math.max(0, Math.min(tokens.length - 1, to))].focus();
    });
  });
}
