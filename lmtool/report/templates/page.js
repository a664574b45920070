"use strict";
// Pointing, and the arrow keys, read a picture out from the table of its figure. A chart says in data attributes how
// its pixels become rows and columns of that table. Each choice is also an event, "pick", with {row, column}.
for (const figure of document.querySelectorAll("figure")) {
  const table = figure.querySelector("details table");
  const readout = figure.querySelector(".readout");
  if (!table || !readout) continue;
  const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows];
  for (const svg of figure.querySelectorAll("svg[data-chart]")) {
    const at = (name) => Number(svg.dataset[name]);
    const cursor = svg.querySelector(".cursor");
    let row = -1;
    let column = 0;
    const place = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return [point.x, point.y];
    };
    // a finger that taps does not move
    const onPoint = (answer) => ["pointerdown", "pointermove"].forEach((name) => svg.addEventListener(name, answer));
    const say = (text) => {
      readout.textContent = text;
      cursor?.removeAttribute("visibility");
      svg.dispatchEvent(new CustomEvent("pick", { detail: { row, column }, bubbles: true }));
    };
    const told = (cells) => {
      const parts = [...cells].map((cell, i) => [heads[i], cell.textContent.trim()]);
      return parts.filter(([, text]) => text).map((part) => part.join(" ")).join(" · ");
    };
    if (svg.dataset.chart === "lines") {
      const known = [];
      rows.forEach((line, index) => {
        const value = line.cells[at("x")].dataset.v;
        if (value !== undefined) known.push([Number(value), index]);
      });
      if (!known.length) continue;
      let here = -1;
      const scaled = "log" in svg.dataset ? Math.log10 : Number;
      const pixel = (value) => at("left") + ((scaled(value) - at("from")) / (at("to") - at("from"))) * (at("right") - at("left"));
      const choose = (index) => {
        here = Math.max(0, Math.min(known.length - 1, index));
        row = known[here][1];
        cursor.setAttribute("transform", `translate(${pixel(known[here][0])} 0)`);
        say(told(rows[row].cells));
      };
      onPoint((event) => {
        const [x] = place(event);
        let best = 0;
        known.forEach(([value], i) => {
          if (Math.abs(pixel(value) - x) < Math.abs(pixel(known[best][0]) - x)) best = i;
        });
        choose(best);
      });
      svg.addEventListener("keydown", (event) => {
        const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -known.length, End: known.length };
        if (!(event.key in steps)) return;
        event.preventDefault();
        choose(here < 0 ? 0 : here + steps[event.key]);
      });
    } else if (svg.dataset.chart === "points") {
      // one for each row of the table, in that order
      const points = [...svg.querySelectorAll(".point")];
      const choose = (index) => {
        row = Math.max(0, Math.min(points.length - 1, index));
        points.forEach((point, i) => point.classList.toggle("here", i === row));
        say(told(rows[row].cells));
      };
      onPoint((event) => {
        const index = points.indexOf(event.target.closest(".point"));
        if (index >= 0) choose(index);
      });
      svg.addEventListener("keydown", (event) => {
        const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -points.length, End: points.length };
        if (!(event.key in steps)) return;
        event.preventDefault();
        choose(row < 0 ? 0 : row + steps[event.key]);
      });
    } else {
      const height = rows.length;
      const width = at("columns");
      const choose = (r, c) => {
        row = Math.max(0, Math.min(height - 1, r));
        column = Math.max(0, Math.min(width - 1, c));
        cursor.setAttribute("x", column);
        cursor.setAttribute("y", row);
        const cells = rows[row].cells;
        say(`${cells[0].textContent} → ${heads[column + 1]}: ${cells[column + 1].textContent}`);
      };
      onPoint((event) => {
        const [x, y] = place(event);
        const c = Math.floor((x - at("left")) / at("cell"));
        const r = Math.floor((y - at("top")) / at("cell"));
        if (r >= 0 && r < height && c >= 0 && c < width) choose(r, c);
      });
      svg.addEventListener("keydown", (event) => {
        const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
          Home: [0, -width], End: [0, width] };
        if (!(event.key in moves)) return;
        event.preventDefault();
        if (row < 0) choose(0, 0);
        else choose(row + moves[event.key][0], column + moves[event.key][1]);
      });
    }
  }
}
